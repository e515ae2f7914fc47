"""Gives a language model of a GGUF file the multimodal rope that its metadata describes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from mrs.architecture.config import Config
from mrs.architecture.layers import Layer
from mrs.architecture.mixers.mixer import Mixer
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.readers.rope_reader import read_sections


def with_rope_sections(
    spec: ModelSpec, stored: object, is_interleaved: bool, where: str
) -> ModelSpec:
    """The spec with these numbers of pairs for time, rows and columns, after which 0 may follow.

    Raises NotReadable and Unsupported.
    """
    config = Config({"dimension_sections": stored}, where)
    given = [count for count in config.sequence("dimension_sections") if count != 0]

    def changed(layer: Layer) -> Layer:
        rope = layer.mixer.rope
        if rope is None:
            return layer
        sections = read_sections(
            Config({"mrope_section": given}, where), rope.scaling, rope.dim // 2
        )
        rope = replace(rope, sections=sections, interleaved_sections=is_interleaved)
        mixer: Mixer = replace(cast(Any, layer.mixer), rope=rope)
        return replace(layer, mixer=mixer)

    return replace(spec, layers=tuple(map(changed, spec.layers)))
