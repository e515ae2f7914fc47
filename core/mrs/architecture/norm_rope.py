"""Normalization and rotary position embedding, as frozen values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Norm:
    """RMSNorm or LayerNorm over the last dimension, always computed in float32."""

    eps: float
    kind: Literal["rms", "layer"] = "rms"
    bias: bool = False


@dataclass(frozen=True)
class RopeScaling:
    """How rotary frequencies are scaled for contexts beyond the trained length.

    `kind` names the rule; `values` are its parameters as the config spells them, sorted by name.
    Each frequency is divided by its entry in `factors`; longrope uses `long_factors` instead for
    sequences beyond the trained length. Both are empty if a GGUF file has them as tensors.
    """

    kind: Literal["linear", "llama3", "yarn", "dynamic", "longrope", "factors"]
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
    def file_slots(self) -> tuple[str, ...]:
        """The slots of the factors that are tensors of the checkpoint."""
        if self.kind == "longrope" and not self.factors:
            return ("rope.short_factors", "rope.long_factors")
        return ("rope.factors",) if self.kind == "factors" else ()


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding of the first `dim` values of each head.

    Pairs are (i, i + dim/2), or (2i, 2i + 1) if `interleaved`. `sections` is set for multimodal
    rope (arXiv 2409.12191): the numbers of pairs that rotate by a token's position in time, by its
    row and by its column.
    """

    dim: int
    base: float
    scaling: RopeScaling | None = None
    interleaved: bool = False
    sections: tuple[int, ...] = ()
