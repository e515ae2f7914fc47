"""What the file of one family of vision models declares."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mrs.architecture.description import TowerKey
from mrs.architecture.family import Family, Names
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.vision_spec import Tower, Vision
from mrs.config.config import Config


@dataclass(frozen=True)
class VisionConfigs:
    """The configs of a vision model, with the family's defaults filled in.

    `model` is config.json, `tower` its `vision_config` or `audio_config`, `images` is
    preprocessor_config.json, `videos` is video_preprocessor_config.json.
    """

    model: Config
    tower: Config
    images: Config
    videos: Config = field(default_factory=lambda: Config({}, ""))


#: (configs, spec of the language model) -> vision part
ReadVision = Callable[[VisionConfigs, ModelSpec], Vision]


@dataclass(frozen=True)
class GgufProjector:
    """How mmproj files store a family's tower and projector.

    projector  their `clip.projector_type`
    is_of      whether metadata under `clip.vision.` is that of this family, for types of projectors
               that several have
    names      slot -> module name, for tower and projector
    token      the image token in the vocabulary of the language model
    video_token           the token of videos, if there is one
    configs    metadata under `clip.vision.` -> (config.json, preprocessor_config.json): the keys
               that the family reads in addition to the usual ones
    tower      the same -> the tower's config
    stored     the tower of such a config -> that of the tensors in these files
    tapped_names          layers of the tower that later layers read -> more names
    interleaved_sections  `Rope.interleaved_sections` of the language model
    texts                 families of its language models in GGUF files; by default `text`
    ignored, unread       as those of `VisionFamily`
    """

    projector: str
    names: Names
    token: str
    configs: Callable[[Config], tuple[Mapping[str, Any], Mapping[str, Any]]]
    tower: Callable[[Config], Mapping[str, Any]] = lambda _: {}
    stored: Callable[[Tower], Tower] = lambda tower: tower
    tapped_names: Callable[[Sequence[int]], Names] = lambda _: {}
    interleaved_sections: bool = False
    texts: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    video_token: str = ""
    is_of: Callable[[Mapping[str, Any]], bool] = lambda _: True


@dataclass(frozen=True)
class VisionFamily:
    """One family of vision models: how to read the configs, and the names of the tensors.

    name, aliases   values of `model_type` in config.json
    read            (configs, spec of the language model) -> Vision
    refine          changes the spec of the language model by the whole config
    names           slot -> module name, for tower and projector; `layer` is the prefix of the
                    names inside a layer of the tower
    spellings       old prefix -> new prefix of tensor names, for checkpoints in which no name
                    starts with the old one
    ignored         prefixes of the names of tensors of another purpose, which a warning names
    unread          those of tensors on which no reply depends: nothing is said of them
    gguf            how mmproj files store tower and projector
    defaults        values that transformers assumes for keys that config.json lacks; likewise
                    `tower_defaults`, `image_defaults` and `video_defaults`
    tower_key       the key of the tower's config in config.json; None if both are the same
    wrapper         the key of an object in config.json that has the other keys in it, if there is
                    one in some checkpoints

    The language model is a text family:

    decoder         itself, if it is in no other model; otherwise
    text            its name, if the text config does not give one
    text_types      name in the text config -> name of the text family
    text_start      replaces `model.` at the start of that family's tensor names
    head            replaces `lm_head`
    text_names      slots with other names than in the text family
    text_defaults   defaults for its config
    """

    name: str
    read: ReadVision
    names: Names
    decoder: Family | None = None
    text: str = "llama"
    text_types: Names = field(default_factory=dict)
    text_start: str = "language_model.model."
    head: str = "language_model.lm_head"
    text_names: Names = field(default_factory=dict)
    text_defaults: Mapping[str, Any] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    tower_key: TowerKey | None = "vision_config"
    wrapper: str = ""
    tower_defaults: Mapping[str, Any] = field(default_factory=dict)
    image_defaults: Mapping[str, Any] = field(default_factory=dict)
    video_defaults: Mapping[str, Any] = field(default_factory=dict)
    spellings: Names = field(default_factory=dict)
    refine: Callable[[ModelSpec, Config], ModelSpec] | None = None
    ignored: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    gguf: GgufProjector | None = None
