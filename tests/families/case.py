"""What a parity test runs: one tiny configuration of a family."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

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
