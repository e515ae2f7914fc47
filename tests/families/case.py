"""What a parity test runs: one tiny configuration of a family."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor

PROMPT_TOKENS = 48
WINDOW = 16  # shorter than the prompt, so that it matters

_SIZES: dict[str, Any] = {
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.08,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
#: What transformers' classes would add, and three key heads, which two processes share unevenly.
_PLAIN: dict[str, Any] = {
    "hidden_size": 96,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
    "tie_word_embeddings": False,
}


@dataclass(frozen=True)
class Case:
    """One configuration. `gguf` names the GGUF architecture, None where GGUF cannot hold it."""

    family: str
    name: str
    changes: dict[str, Any] = field(hash=False)
    gguf: str | None

    @property
    def id(self) -> str:
        return f"{self.family}-{self.name}"

    @property
    def config(self) -> dict[str, Any]:
        return {**_SIZES, **self.changes}

    @property
    def gguf_options(self) -> dict[str, Any]:
        """Further arguments of `support.gguf_writer.write_text_model`."""
        return {}


class Plain(Protocol):
    """A model in plain torch: the weights by their names in safetensors files, and the config."""

    def __init__(self, weights: Mapping[str, Tensor], config: Mapping[str, Any]) -> None: ...

    def logits(self, ids: list[int]) -> Tensor:
        """(T, V), after each of the tokens of a sequence."""


@dataclass(frozen=True, kw_only=True)
class PlainCase(Case):
    """One configuration of a family that transformers does not have, with the model in plain torch.

    Its GGUF files are written like those of the architecture `gguf_like`; `gguf_names` are those of
    its further tensors, without `model.layers.N.` and `blk.N.`, and `gguf_numbers` what its further
    metadata say.
    """

    plain: type[Plain]
    gguf_like: str = "llama"
    gguf_names: dict[str, str] = field(default_factory=dict, hash=False)
    gguf_numbers: dict[str, int] = field(default_factory=dict, hash=False)

    @property
    def config(self) -> dict[str, Any]:
        return {**super().config, **_PLAIN, "model_type": self.family, **self.changes}

    @property
    def gguf_options(self) -> dict[str, Any]:
        return {"like": self.gguf_like, "names": self.gguf_names, "numbers": self.gguf_numbers}
