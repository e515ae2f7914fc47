"""Rotary position embedding, and other things that depend on positions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class RopeScaling:
    """How rotary frequencies are scaled for contexts beyond the trained length.

    `kind` names the rule; `values` are its parameters as the config spells them, sorted by name.
    Each frequency is divided by its entry in `factors`; longrope uses `long_factors` instead for
    sequences beyond the trained length. Both are empty if a GGUF file has them as tensors.
    """

    kind: Literal["linear", "llama3", "yarn", "dynamic", "longrope", "factors", "proportional"]
    values: tuple[tuple[str, float], ...] = ()
    factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()

    def get(self, name: str, default: float) -> float:
        return dict(self.values).get(name, default)

    @property
    def depends_on_length(self) -> bool:
        """Whether the rotation at a position depends on the length of the sequence."""
        return self.kind in ("dynamic", "longrope")

    @property
    def switch_tokens(self) -> int | None:
        """The sequence length beyond which longrope uses `long_factors`; None for other kinds."""
        return int(self.trained_tokens) if self.kind == "longrope" else None

    @property
    def trained_tokens(self) -> float:
        """The context length that the model was trained on before scaling."""
        return self.get(
            "original_max_position_embeddings", self.get("max_position_embeddings", 2048)
        )

    @property
    def scaled_tokens(self) -> int:
        """The length up to which a scaling of the trained length reaches; 0 if the config says it.

        Under `dynamic` a model is as it was trained up to that length, and changes beyond it.
        """
        trained = self.get("max_position_embeddings", 0.0)
        if self.kind == "yarn":
            trained = self.get("original_max_position_embeddings", 0.0)
        return int(self.get("factor", 1.0) * trained) if self.kind in ("yarn", "dynamic") else 0

    @property
    def magnitude(self) -> float:
        """The factor on cos and sin: of yarn, and of longrope by the whole context."""
        if stated := self.get("attention_factor", 0.0):
            return stated
        if self.kind == "longrope":
            trained = self.trained_tokens
            factor = self.get("factor", self.get("max_position_embeddings", trained) / trained)
            return math.sqrt(1 + math.log(factor) / math.log(trained)) if factor > 1 else 1.0
        if self.kind != "yarn":
            return 1.0
        mscale, all_dims = self.get("mscale", 0.0), self.get("mscale_all_dim", 0.0)
        if mscale and all_dims:
            return self._weighed_magnitude(mscale) / self._weighed_magnitude(all_dims)
        return self._weighed_magnitude(1.0)

    def _weighed_magnitude(self, weight: float) -> float:
        factor = self.get("factor", 1.0)
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    @property
    def file_slots(self) -> tuple[str, ...]:
        """The slots of the factors that are tensors of the checkpoint."""
        if self.kind == "longrope" and not self.factors:
            return ("rope.short_factors", "rope.long_factors")
        return ("rope.factors",) if self.kind == "factors" else ()


@dataclass(frozen=True)
class QueryScale:
    """A factor of the queries: 1 + beta * ln(1 + floor((position + offset) / length))."""

    beta: float
    length: float
    offset: int = 0


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding of the first `dim` values of each head.

    Pairs are (i, i + dim/2), or (2i, 2i + 1) if `interleaved`. `sections` is set for multimodal
    rope (arXiv 2409.12191): the numbers of pairs that rotate by a token's position in time, by its
    row and by its column. With `interleaved_sections` pair 3i + 1 rotates by the row and pair
    3i + 2 by the column, as long as there are pairs of that section; all others rotate by time.
    If it is `backwards`, the angles are negative.
    """

    dim: int
    base: float
    scaling: RopeScaling | None = None
    interleaved: bool = False
    sections: tuple[int, ...] = ()
    interleaved_sections: bool = False
    backwards: bool = False

    @property
    def axes(self) -> list[int]:
        """By which position each pair rotates: 0 time, 1 row, 2 column; [] without sections."""
        if not self.interleaved_sections:
            return [axis for axis, pairs in enumerate(self.sections) for _ in range(pairs)]
        return [
            axis if pair < 3 * self.sections[axis] else 0
            for pair, axis in ((pair, pair % 3) for pair in range(sum(self.sections)))
        ]
