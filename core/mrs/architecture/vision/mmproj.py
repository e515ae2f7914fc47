"""Describe an mmproj file: the vision tower and projector of a GGUF model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from mrs.architecture.family_registry import family_by_gguf_arch
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.parameters import list_vision_parameters
from mrs.architecture.vision.describe_vision import vision_families
from mrs.architecture.vision.vision_family import GgufProjector, VisionConfigs, VisionFamily
from mrs.config.config import Config
from mrs.errors import NotReadable, Unsupported
from mrs.layers.layer import Layer
from mrs.layers.mixer import Mixer
from mrs.layers.rope.config import read_sections
from mrs.weights.binding import Parameter

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
#: Key that families read -> the tensor whose presence it means.
_FLAGS = {
    "has_norm_bias": "v.blk.0.ln1.bias",
    "has_qk_norm": "v.blk.0.attn_q_norm.weight",
    "has_qkv_bias": "v.blk.0.attn_q.bias",
    "has_joint_bias": "v.blk.0.attn_qkv.bias",
    "has_post_norm": "v.post_ln.weight",
    "has_bounds": "v.blk.0.attn_q.input_max",
    "has_standard": "v.std_bias",
    "has_projector_norm": "mm.input_norm.weight",
    "has_projector_bias": "mm.0.bias",
}
#: Key that families read -> the tensor whose number of rows it is.
_ROWS = {
    "position_rows": "v.position_embd.weight",
    "query_rows": "v.blk.0.attn_q.weight",
    "projector_rows": "mm.1.weight",
    "adapter_rows": "mm.model.mlp.1.weight",
}
#: Of the whole file: whether the activation is one of these, and not the quick GELU.
_ACTIVATIONS = ("use_silu", "use_gelu")
#: The keys of the image token in configs.
_TOKEN_KEYS = ("image_token_index", "image_token_id")
#: After the architecture in the metadata: the rotary pairs of time, rows and columns, and a zero.
_SECTIONS = "rope.dimension_sections"
IMAGE_KEYS = {"image_mean": "image_mean", "image_std": "image_std"}


def describe_mmproj(
    metadata: Mapping[str, Any],
    model: Mapping[str, Any],
    text: ModelSpec,
    shapes: Mapping[str, tuple[int, ...]],
    where: str,
) -> tuple[ModelSpec, list[Parameter], GgufProjector]:
    """(spec of `text` with its vision part, parameters of tower and projector, their family's).

    `metadata` is that of the mmproj file, `model` that of the language model, and `shapes` those
    of all tensors. Raises Unsupported for a projector of another family than the language model,
    NotReadable for a file that is not a projector.
    """
    family = _family(metadata, text.family, where)
    gguf = family.gguf
    assert gguf is not None
    sections = model.get(f"{model.get('general.architecture')}.{_SECTIONS}")
    if sections is not None:
        text = with_rope_sections(text, sections, gguf.interleaved_sections, where)
    vocabulary = model.get("tokenizer.ggml.tokens", ())
    clip = _clip(metadata, shapes, text, where)
    vision = family.read(_configs(family, gguf, metadata, vocabulary, clip), text)
    vision = replace(vision, tower=gguf.stored(vision.tower))
    names = {**gguf.names, **gguf.tapped_names(getattr(vision.tower, "tapped", ()))}
    names |= _swapped(names, shapes, vision.tower.hidden_size)
    parameters = list_vision_parameters(vision, text.hidden_size, names, shapes, transforms={})
    return replace(text, vision=vision), parameters, gguf


def _clip(
    metadata: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], text: ModelSpec, where: str
) -> Config:
    """The metadata under `clip.vision.`, and what follows from tensors and the language model."""
    rows = {key: shapes.get(name, ()) for key, name in _ROWS.items()}
    values = {
        **_under(metadata, None),
        **{key: metadata.get(f"clip.{key}") for key in _ACTIVATIONS},
        **{key: name in shapes for key, name in _FLAGS.items()},
        **{key: shape[-2] for key, shape in rows.items() if len(shape) > 1},
        "has_layer_inputs": text.layer_inputs is not None,
    }
    return Config(values, where)


def _swapped(
    names: Mapping[str, str], shapes: Mapping[str, tuple[int, ...]], hidden_size: int
) -> dict[str, str]:
    """The names of the MLPs' two maps: older files have them the other way round."""
    up, down = names.get("ffn.up", ""), names.get("ffn.down", "")
    shape = shapes.get(f"{names['layer'].format(layer=0)}{up}.weight", ())
    is_swapped = len(shape) > 1 and shape[0] == hidden_size != shape[1]
    return {"ffn.up": down, "ffn.down": up} if is_swapped else {}


def _configs(
    family: VisionFamily,
    gguf: GgufProjector,
    metadata: Mapping[str, Any],
    vocabulary: Sequence[str],
    clip: Config,
) -> VisionConfigs:
    where = clip.where
    tower, images = _under(metadata, TOWER_KEYS), _under(metadata, IMAGE_KEYS)
    model, more_images = gguf.configs(clip)
    tower |= gguf.tower(clip)
    token = {}
    if gguf.token in vocabulary:
        token = dict.fromkeys(_TOKEN_KEYS, vocabulary.index(gguf.token))
    if gguf.video_token in vocabulary:
        token["video_token_id"] = vocabulary.index(gguf.video_token)
    return VisionConfigs(
        model=Config({**family.defaults, **model, **token}, where),
        tower=Config({**family.tower_defaults, **tower}, where),
        images=Config({**family.image_defaults, **images, **more_images}, where),
        videos=Config({**family.video_defaults, **images}, where),
    )


def _under(metadata: Mapping[str, Any], keys: Mapping[str, str] | None) -> dict[str, Any]:
    """The metadata under `clip.vision.`: that in `keys`, renamed; all of it if `keys` is None."""
    prefix = "clip.vision."
    stored = {name.removeprefix(prefix): name for name in metadata if name.startswith(prefix)}
    wanted = {name: name for name in stored} if keys is None else keys
    return {key: metadata[stored[name]] for key, name in wanted.items() if name in stored}


def fits_model(metadata: Mapping[str, Any], model: Mapping[str, Any]) -> bool:
    """Whether an mmproj file is one for this language model, by the metadata of both."""
    arch = str(model.get("general.architecture"))
    # Older files have another width under this key.
    is_new = metadata.get("general.type") == "mmproj"
    width = metadata.get("clip.vision.projection_dim") if is_new else None
    try:
        text = family_by_gguf_arch(arch).name
    except Unsupported:
        return False
    is_wide = width in (None, model.get(f"{arch}.embedding_length"))
    return is_wide and text in _families(_kind(metadata), metadata)


def _kind(metadata: Mapping[str, Any]) -> Any:
    kinds = (metadata.get(f"clip.{key}projector_type") for key in ("", "vision."))
    return next((kind for kind in kinds if kind), None)


def _families(kind: object, metadata: Mapping[str, Any]) -> dict[str, VisionFamily]:
    """The families with projectors of this type, by those of their language models."""
    known = [(f.gguf, f) for f in vision_families().values() if f.gguf is not None]
    return {
        name: family
        for projector, family in known
        if projector.projector == kind and projector.is_of(_under(metadata, None))
        for name in projector.texts or (family.text,)
    }


def _family(metadata: Mapping[str, Any], text: str, where: str) -> VisionFamily:
    if metadata.get("general.architecture") != "clip":
        raise NotReadable(
            "this is not an mmproj file", where=where, hint="name the projector with --mmproj"
        )
    kind = _kind(metadata)
    by_text = _families(kind, metadata)
    if not by_text:
        known = (family.gguf for family in vision_families().values())
        names = ", ".join(sorted({each.projector for each in known if each is not None}))
        raise Unsupported(
            f"projectors of type {kind!r} are not supported in GGUF files",
            where=where,
            hint=f"only {names} are; use safetensors files with vision-plain",
        )
    if text not in by_text:
        names = " or ".join(sorted({family.name for family in by_text.values()}))
        raise Unsupported(
            f"the projector is for {names} models, but the model is {text}",
            where=where,
            hint="name the mmproj file that belongs to the model",
        )
    return by_text[text]


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
