"""What one family file declares: how to read its config, and what its tensors are called."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from mrs.families.config import Config
from mrs.families.spec import ModelSpec

Names = Mapping[str, str]


@dataclass(frozen=True)
class Family:
    """One model family.

    `name` is transformers' `model_type`; `gguf_arch` is GGUF's `general.architecture`.
    `safetensors` and `gguf` hold only the slots whose names differ from `names.py`'s tables.
    `gguf_keys` maps config keys to further GGUF metadata keys (after the `arch.` prefix).
    `gguf_rope_interleaved` says that llama.cpp's converter permutes the rows of q and k so that
    rotary pairs lie side by side; `norm_plus_one` that safetensors files store norm weights as
    offsets from one (GGUF files hold the sum).
    """

    name: str
    read: Callable[[Config], ModelSpec]
    gguf_arch: str | None = None
    safetensors: Names = field(default_factory=dict)
    gguf: Names = field(default_factory=dict)
    gguf_keys: Names = field(default_factory=dict)
    gguf_rope_interleaved: bool = False
    norm_plus_one: bool = False
