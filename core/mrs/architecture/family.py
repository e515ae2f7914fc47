"""What the file of one model family declares."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from mrs.architecture.draft_head import HeadFiles
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config

if TYPE_CHECKING:
    from mrs.architecture.pooler import Pooler
    from mrs.architecture.pooler_config import NamedPooler

Names = Mapping[str, str]


def squeezed(name: str) -> str:
    """A name for comparisons, without case and punctuation: `qwen3moe` for `qwen3_moe`."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


@dataclass(frozen=True)
class Family:
    """One model family: how to read its config, and the names of its tensors.

    name, aliases          values of `model_type` in config.json
    read                   config -> ModelSpec
    gguf_arch              GGUF's `general.architecture`
    other_gguf_archs       further values of it, of files that this family reads too
    defaults               values that transformers assumes for keys that config.json lacks; not
                           applied to GGUF files
    safetensors, gguf      slot names that differ from the tables in `tensor_names.py`
    gguf_keys              config key -> GGUF metadata key after the `arch.` prefix
    gguf_defaults          values that llama.cpp assumes for keys that GGUF files cannot have
    gguf_rope_interleaved  llama.cpp's converter permutes the rows of q and k, so that the two
                           values of a rotary pair are adjacent
    norm_plus_one          safetensors files store norm weights as offsets from one (GGUF files
                           store the sum): all of them, or only those in `layers`
    classifier             for files of a model for classification, which ranks texts: config ->
                           its dense layers, with their tensor names
    states                 for a model that maps the states of all tokens before they are pooled:
                           config -> a pooler with that layer
    head                   how files have a draft head, if they may
    ignored                prefixes of the names of tensors of another purpose, which a warning
                           names; `{layers}` stands for the number of layers
    unread                 those of tensors on which no result depends: nothing is said of them
    """

    name: str
    read: Callable[[Config], ModelSpec]
    gguf_arch: str | None = None
    other_gguf_archs: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    safetensors: Names = field(default_factory=dict)
    gguf: Names = field(default_factory=dict)
    gguf_keys: Names = field(default_factory=dict)
    gguf_defaults: Mapping[str, Any] = field(default_factory=dict)
    gguf_rope_interleaved: bool = False
    norm_plus_one: Literal[False, "all", "layers"] = False
    classifier: Callable[[Config], NamedPooler] | None = None
    states: Callable[[Config], Pooler] | None = None
    head: HeadFiles | None = None
    ignored: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
