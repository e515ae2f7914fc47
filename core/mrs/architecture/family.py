"""What one family file declares: how to read its config, and what its tensors are called."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mrs.architecture.config import Config
from mrs.architecture.model_spec import ModelSpec

Names = Mapping[str, str]


@dataclass(frozen=True)
class Family:
    """One model family.

    `name` is transformers' `model_type`, `aliases` other values of it that mean the same;
    `gguf_arch` is GGUF's `general.architecture`.
    `defaults` are the values that transformers assumes where config.json is silent; GGUF files
    say everything, or leave it to the family's `read`.
    `safetensors` and `gguf` hold only the slots whose names differ from `names.py`'s tables.
    `gguf_keys` maps config keys to further GGUF metadata keys (after the `arch.` prefix).
    `gguf_rope_interleaved` says that llama.cpp's converter permutes the rows of q and k so that
    rotary pairs lie side by side; `norm_plus_one` that safetensors files store norm weights as
    offsets from one (GGUF files hold the sum).
    `ignored` are the starts of names of tensors that are for other uses of the model; `{layers}`
    stands for the number of its layers.
    """

    name: str
    read: Callable[[Config], ModelSpec]
    gguf_arch: str | None = None
    aliases: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    safetensors: Names = field(default_factory=dict)
    gguf: Names = field(default_factory=dict)
    gguf_keys: Names = field(default_factory=dict)
    gguf_rope_interleaved: bool = False
    norm_plus_one: bool = False
    ignored: tuple[str, ...] = ()
