"""Describe vision models: find the family, its language model, and its tower and projector."""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from typing import Any

from mrs.architecture.describe_safetensors import (
    key_warnings,
    model_type,
    text_config,
    text_head,
    text_parameters,
)
from mrs.architecture.description import CheckpointHeaders, ReadModel
from mrs.architecture.family import Family, Names, squeezed
from mrs.architecture.family_registry import family_by_name
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.parameters import list_vision_parameters
from mrs.architecture.tensor_names import SAFETENSORS, TRANSPOSED
from mrs.architecture.vision.image_layouts import limit_edge
from mrs.architecture.vision.text_defaults import NESTED_CONFIG_DEFAULTS
from mrs.architecture.vision.vision_family import VisionConfigs, VisionFamily
from mrs.architecture.vision_spec import Vision
from mrs.config.config import Config
from mrs.errors import NotReadable, Unsupported, UsageError
from mrs.weights.binding import Parameter, Piece
from mrs.weights.weight_scheme import TensorHeader

#: Settings of images that shape no pixels: of the program that made them, of tensors, and sizes
#: that the tower has itself. Images always become RGB.
_OF_OTHER_THINGS = re.compile(
    r"_.*|(image_|video_)?processor_(type|class)|feature_extractor_type|auto_map|.*data_format"
    r"|return_tensors|device|disable_grouping|default_to_square|do_convert_rgb"
    r"|size|crop_size|patch_size|temporal_patch_size|merge_size|image_seq_len(gth)?|num_image_.*"
    r"|chunk_length|n_samples|nb_max_frames|padding_side|return_attention_mask"
)
#: Values that change nothing.
_NEUTRAL: tuple[Any, ...] = (None, True, False, 1, 1 / 255, [0.0] * 3, [1.0] * 3, "", [], {})


@cache
def vision_families() -> dict[str, VisionFamily]:
    """Every family with a tower by its name: the `FAMILY` of each module in `families/vision`."""
    package = import_module("mrs.families.vision")
    modules = (
        import_module(f"{package.__name__}.{m.name}")
        for m in pkgutil.iter_modules(package.__path__)
    )
    unsorted = [module.FAMILY for module in modules if hasattr(module, "FAMILY")]
    return {family.name: family for family in sorted(unsorted, key=lambda f: f.name)}


def find_vision_family(name: str) -> VisionFamily | None:
    """The vision family of a `model_type` or `--arch` name, if there is one."""
    wanted, families = squeezed(name), vision_families().values()
    return next((f for f in families if wanted in map(squeezed, (f.name, *f.aliases))), None)


def vision_family(name: str, where: str) -> VisionFamily:
    """The vision family of a `model_type` or `--arch` name; Unsupported if there is none."""
    family = find_vision_family(name)
    if family is None:
        raise Unsupported(
            f"the architecture {name!r} is not a known vision or audio model",
            where=where,
            hint=f"choose one of {', '.join(vision_families())}; "
            "for text alone the model may run with `plain`",
        )
    return family


def read_multimodal(checkpoint: CheckpointHeaders, arch: str | None) -> ReadModel:
    """The language model, the tower and the projector in a multimodal checkpoint."""
    where = checkpoint.model_id
    family = vision_family(arch or model_type(checkpoint.config, where), where)
    text_model = _read_language_model(checkpoint, family)
    model = _config_of(family, checkpoint)
    images, asked = checkpoint.image_config, set[str]()
    spec, vision_parameters = describe_vision(
        family,
        model,
        images,
        text_model.spec,
        checkpoint.tensors,
        videos=checkpoint.video_config,
        asked=asked,
    )
    unused = unused_image_settings({k: v for k, v in images.items() if k not in asked})
    return text_model._replace(
        spec=spec,
        parameters=text_model.parameters + vision_parameters,
        warnings=text_model.warnings + unused,
    )


def unused_image_settings(unread: Mapping[str, Any]) -> tuple[str, ...]:
    """The warning that names settings of images, of those `unread`, that would shape pixels."""
    names = sorted(
        name
        for name, value in unread.items()
        if not _OF_OTHER_THINGS.fullmatch(name)
        and (value is False if name.startswith("do_") else value not in _NEUTRAL)
    )
    line = f"settings of preprocessor_config.json that are not used: {', '.join(names)}"
    return (line,) if names else ()


def read_without_tower(checkpoint: CheckpointHeaders, arch: str | None) -> ReadModel | None:
    """The language model in a multimodal checkpoint, without tower and projector.

    None if the checkpoint is not that of a known vision family.
    """
    values, _ = text_config(checkpoint.config, checkpoint.tensors)
    family = find_vision_family(arch or model_type(values, checkpoint.model_id))
    if family is None or family.tower_key not in values:
        return None
    text_model = _read_language_model(checkpoint, family)
    unused = vision_tensor_prefixes(family, checkpoint.tensors)
    return text_model._replace(ignored=text_model.ignored + unused)


def _config_of(family: VisionFamily, checkpoint: CheckpointHeaders) -> Config:
    """config.json with the family's defaults, and what it has in another object at its place."""
    given = checkpoint.config
    wrapped = given.get(family.wrapper, {}) if family.wrapper else {}
    wrapped = wrapped if isinstance(wrapped, Mapping) else {}
    return Config({**family.defaults, **given, **wrapped}, checkpoint.model_id)


def _read_language_model(checkpoint: CheckpointHeaders, family: VisionFamily) -> ReadModel:
    model = _config_of(family, checkpoint)
    text = language_model_of(family, model, checkpoint.tensors)
    spec = text.family.read(text.config)
    if family.refine is not None:
        spec = family.refine(spec, model)
    parameters = text_parameters(checkpoint, text.family, text.config, spec, text.names)
    return ReadModel(
        spec,
        as_stored(parameters, checkpoint.tensors),
        ignored=text.family.ignored + family.ignored,
        unread=text.family.unread + family.unread,
        warnings=key_warnings(text.config, text.given),
        head=text_head(checkpoint, text.family, text.config, spec, text.names),
    )


@dataclass(frozen=True)
class LanguageModel:
    """The language model inside a multimodal checkpoint: family, config and tensor names.

    `given` are the keys that the file has for the language model alone.
    """

    family: Family
    config: Config
    names: Names
    given: Collection[str] = ()


def language_model_of(
    family: VisionFamily, model: Config, tensors: Collection[str]
) -> LanguageModel:
    """The language model inside a checkpoint of `family` with the config `model`."""
    inner = model.values.get("text_config")
    is_nested = isinstance(inner, Mapping)
    values = inner if isinstance(inner, Mapping) else model.values
    kind = Config(values, model.where).text("model_type", family.text)
    text = family.decoder or family_by_name(family.text_types.get(kind, kind))
    # Either of the two configs may say whether the head is tied; the tensors are certain.
    head = _spelled({"head": family.head}, family, tensors)["head"]
    tied = f"{head}.weight" not in tensors
    quantization = model.values.get("quantization_config")
    given = {"quantization_config": quantization, **values, "tie_word_embeddings": tied}
    usual = {**SAFETENSORS, **text.safetensors, **family.text_names}
    renamed = {slot: _renamed(name, family) for slot, name in usual.items()}
    names = _spelled(renamed, family, tensors)
    nested = NESTED_CONFIG_DEFAULTS.get(kind if is_nested else family.text, {})
    defaults = {**text.defaults, **nested, **family.text_defaults}
    text_keys = tuple(inner) if isinstance(inner, Mapping) else ()
    return LanguageModel(text, Config({**defaults, **given}, model.where), names, text_keys)


def with_longest_edge(spec: ModelSpec, edge: int) -> ModelSpec:
    """The same model for images that are scaled down until no edge is longer than `edge` pixels.

    A text model is returned unchanged. UsageError if the limit would have no effect.
    """
    if spec.vision is None:
        return spec
    if spec.vision.image_layout is None:
        reason = "--max-edge has no effect: this model takes no images"
        raise UsageError(reason, hint="leave it out")
    layout = limit_edge(spec.vision.image_layout, edge)
    return replace(spec, vision=replace(spec.vision, layout=layout))


def vision_tensor_prefixes(family: VisionFamily, tensors: Collection[str]) -> tuple[str, ...]:
    """The prefixes of the names of all tensors of the tower and projector."""
    modules = {
        slot: name.removesuffix(TRANSPOSED).partition("{")[0]
        for slot, name in family.names.items()
        if not slot.startswith(("mixer.", "ffn."))
    }
    return tuple(_spelled(modules, family, tensors).values())


def _renamed(name: str, family: VisionFamily) -> str:
    if name == "lm_head":
        return family.head
    return family.text_start + name.removeprefix("model.") if name.startswith("model.") else name


def _spelled(names: Names, family: VisionFamily, tensors: Collection[str]) -> Names:
    """`names` in the spelling of this checkpoint, see `VisionFamily.spellings`."""
    spellings = {
        old: new
        for old, new in family.spellings.items()
        if not any(tensor.startswith(old) for tensor in tensors)
    }
    spelled = dict(names)
    for slot, name in names.items():
        for old, new in spellings.items():
            if name.startswith(old):
                spelled[slot] = new + name.removeprefix(old)
    return spelled


def describe_vision(
    family: VisionFamily,
    model: Config,
    images: Mapping[str, Any],
    text: ModelSpec,
    tensors: Collection[str],
    videos: Mapping[str, Any] | None = None,
    asked: set[str] | None = None,
) -> tuple[ModelSpec, list[Parameter]]:
    """(spec of `text` with its vision part, parameters of the tower and projector).

    `model` is config.json, `images` is preprocessor_config.json, `videos` is
    video_preprocessor_config.json. The keys of `images` that are looked up are added to `asked`.
    """
    key = family.tower_key
    tower = model.values if key is None else model.values.get(key)
    if not isinstance(tower, Mapping):
        raise NotReadable(
            f"the configuration lacks {key!r}",
            where=model.where,
            hint="run a text model with `plain`",
        )
    configs = VisionConfigs(
        model=model,
        tower=Config({**family.tower_defaults, **tower}, model.where),
        images=Config({**family.image_defaults, **images}, model.where, asked),
        videos=Config({**family.video_defaults, **(videos or {})}, model.where),
    )
    vision: Vision = family.read(configs, text)
    parameters = list_vision_parameters(
        vision,
        text.hidden_size,
        _spelled(family.names, family, tensors),
        tensors,
        transforms={"offset_norm": "plus_one"},
    )
    return replace(text, vision=vision), parameters


def as_stored(
    parameters: Sequence[Parameter], tensors: Mapping[str, TensorHeader]
) -> list[Parameter]:
    """The parameters, transposed only if the shapes in the file's headers say so."""
    return [
        each._replace(pieces=tuple(_as_stored(p, each.columns, tensors) for p in each.pieces))
        if any(piece.transposed for piece in each.pieces)
        else each
        for each in parameters
    ]


def _as_stored(piece: Piece, columns: int, tensors: Mapping[str, TensorHeader]) -> Piece:
    shape = tensors[piece.tensor].shape if piece.tensor in tensors else ()
    is_plain = len(shape) > 1 and shape[-1] == columns != shape[-2]
    return piece._replace(transposed=False) if piece.transposed and is_plain else piece
