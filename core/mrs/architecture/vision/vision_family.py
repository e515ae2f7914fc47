"""What one file of a family that sees declares, around the text family inside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from mrs.architecture.config import Config
from mrs.architecture.family import Names
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.vision_spec import Vision

TowerKey = Literal["vision_config", "img_processor"]
#: A config without any of these is of no model that sees.
TOWER_KEYS: tuple[TowerKey, ...] = get_args(TowerKey)


@dataclass(frozen=True)
class VisionConfigs:
    """What the files of a checkpoint say of its vision part.

    `model` is config.json; `tower` its `vision_config`, under the family's defaults; `images`
    is preprocessor_config.json, under its defaults.
    """

    model: Config
    tower: Config
    images: Config


@dataclass(frozen=True)
class GgufProjector:
    """How GGUF files have a family's tower and projector.

    `projector` is their `clip.projector_type`. `configs` makes of what they say under
    `clip.vision.` what the family reads of config.json and preprocessor_config.json beside the
    usual keys. `token` is the image token in the vocabulary of the language model.
    """

    projector: str
    names: Names
    token: str
    configs: Callable[[Config], tuple[Mapping[str, Any], Mapping[str, Any]]]


@dataclass(frozen=True)
class VisionFamily:
    """One family of models that see.

    `name` is transformers' `model_type`. `read` makes the vision part from the configs and the
    text model's spec. The text model is of the family that its own config names, or of `text`;
    `text_types` are names of text families in such checkpoints alone. Where that family's names
    start with `model.`, here they start with `text_start`, and its head is `head`; `text_names`
    are slots named otherwise, `text_defaults` what its config leaves out. `names` gives the parts
    of tower and projector their module names, and `layer` the start of those of a tower's layer.
    `tower_key` is where the tower is described. Files without a name that starts like a key of
    `spellings` start it with the value.
    `refine` changes the text model's spec by the whole config.
    """

    name: str
    read: Callable[[VisionConfigs, ModelSpec], Vision]
    names: Names
    text: str = "llama"
    text_types: Names = field(default_factory=dict)
    text_start: str = "language_model.model."
    head: str = "language_model.lm_head"
    text_names: Names = field(default_factory=dict)
    text_defaults: Mapping[str, Any] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    tower_key: TowerKey = "vision_config"
    tower_defaults: Mapping[str, Any] = field(default_factory=dict)
    image_defaults: Mapping[str, Any] = field(default_factory=dict)
    spellings: Names = field(default_factory=dict)
    refine: Callable[[ModelSpec, Config], ModelSpec] | None = None
    ignored: tuple[str, ...] = ()
    gguf: GgufProjector | None = None
