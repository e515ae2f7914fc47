"""Describe an mmproj file: the vision tower and projector of a GGUF model."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mrs.architecture.binding import Parameter
from mrs.architecture.config import Config
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.parameters import list_vision_parameters
from mrs.architecture.vision.describe_vision import vision_families
from mrs.architecture.vision.vision_family import GgufProjector, VisionConfigs, VisionFamily
from mrs.errors import NotReadable, Unsupported

#: config key -> GGUF key after `clip.vision.`
TOWER_KEYS = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "image_size": "image_size",
    "patch_size": "patch_size",
    "layer_norm_eps": "attention.layer_norm_epsilon",
}
IMAGE_KEYS = {"image_mean": "image_mean", "image_std": "image_std"}


def describe_mmproj(
    metadata: Mapping[str, Any],
    vocabulary: Sequence[str],
    text: ModelSpec,
    tensors: Collection[str],
    where: str,
) -> tuple[ModelSpec, list[Parameter]]:
    """(spec of `text` with its vision part, parameters of the tower and projector).

    `metadata` is that of the mmproj file, `vocabulary` are the tokens of the language model.
    Raises Unsupported for a projector of another family than the language model, NotReadable for a
    file that is not a projector.
    """
    family = _family(metadata, where)
    gguf = family.gguf
    assert gguf is not None
    if text.family != family.text:
        raise Unsupported(
            f"the projector is for {family.name} models, but the model is {text.family}",
            where=where,
            hint="name the mmproj file that belongs to the model",
        )
    vision = family.read(_configs(family, gguf, metadata, vocabulary, where), text)
    parameters = list_vision_parameters(
        vision, text.hidden_size, gguf.names, tensors, transforms={}
    )
    return replace(text, vision=vision), parameters


def _configs(
    family: VisionFamily,
    gguf: GgufProjector,
    metadata: Mapping[str, Any],
    vocabulary: Sequence[str],
    where: str,
) -> VisionConfigs:
    tower, images = _under(metadata, TOWER_KEYS), _under(metadata, IMAGE_KEYS)
    model, more_images = gguf.configs(Config(_under(metadata, None), where))
    token = {}
    if gguf.token in vocabulary:
        token["image_token_index"] = vocabulary.index(gguf.token)
    return VisionConfigs(
        model=Config({**family.defaults, **model, **token}, where),
        tower=Config({**family.tower_defaults, **tower}, where),
        images=Config({**family.image_defaults, **images, **more_images}, where),
    )


def _under(metadata: Mapping[str, Any], keys: Mapping[str, str] | None) -> dict[str, Any]:
    """The metadata under `clip.vision.`: that in `keys`, renamed; all of it if `keys` is None."""
    prefix = "clip.vision."
    own = {name.removeprefix(prefix): name for name in metadata if name.startswith(prefix)}
    wanted = {name: name for name in own} if keys is None else keys
    return {key: metadata[own[name]] for key, name in wanted.items() if name in own}


def _family(metadata: Mapping[str, Any], where: str) -> VisionFamily:
    if metadata.get("general.architecture") != "clip":
        raise NotReadable(
            "this is not an mmproj file", where=where, hint="name the projector with --mmproj"
        )
    kinds = (metadata.get(f"clip.{key}projector_type") for key in ("", "vision."))
    kind = next((kind for kind in kinds if kind), None)
    known = {f.gguf.projector: f for f in vision_families().values() if f.gguf is not None}
    if kind not in known:
        raise Unsupported(
            f"projectors of type {kind!r} are not supported in GGUF files",
            where=where,
            hint=f"only {', '.join(known)} are; use safetensors files with vision-plain",
        )
    return known[kind]
