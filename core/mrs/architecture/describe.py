"""Find the family of a checkpoint and describe the model in it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from mrs.architecture.binding import Parameter, WeightTransform
from mrs.architecture.check import check_tensors
from mrs.architecture.config import Config
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.parameters import list_parameters
from mrs.architecture.readers.gguf_reader import architecture, config_from_gguf
from mrs.architecture.readers.quantization_reader import read_quantization, with_scales
from mrs.architecture.registry import family_by_gguf_arch, family_by_name
from mrs.architecture.slots import Kind
from mrs.architecture.tensor_names import GGUF, SAFETENSORS
from mrs.architecture.vision.describe_vision import (
    find_vision_family,
    see,
    text_of,
    vision_family,
    vision_tensor_prefixes,
    with_longest_edge,
)
from mrs.architecture.vision.mmproj import describe_mmproj
from mrs.architecture.vision.vision_family import TOWER_KEYS, VisionFamily
from mrs.errors import NotReadable

#: What the names of its tensors start with in such checkpoints.
_PREFIX = "language_model."


class _Tensor(Protocol):
    @property
    def shape(self) -> tuple[int, ...]: ...


class _Checkpoint(Protocol):
    """What this room needs of a checkpoint; `mrs.source.Checkpoint` has it."""

    @property
    def container(self) -> str: ...
    @property
    def model_id(self) -> str: ...
    @property
    def config(self) -> Mapping[str, Any]: ...
    @property
    def image_config(self) -> Mapping[str, Any]: ...
    @property
    def tensors(self) -> Mapping[str, _Tensor]: ...


@dataclass(frozen=True)
class Description:
    """A model as planner and loader see it: its parts, and every tensor with its place."""

    spec: ModelSpec
    parameters: tuple[Parameter, ...]


def describe(
    checkpoint: _Checkpoint,
    arch: str | None = None,
    *,
    sees: bool = False,
    max_edge: int | None = None,
) -> Description:
    """Read the model's parts and bind its tensors, from the header alone.

    `arch` forces a family. With `sees` a tower and a projector belong to it, and without they are
    left out; pictures have no edge longer than `max_edge`. Raises Unsupported for a family,
    feature or extra tensor that cannot be run, NotReadable for a missing or misshapen tensor or
    config key, and UsageError where `max_edge` would change nothing.
    """
    if checkpoint.container == "gguf":
        found = _read_gguf(checkpoint, arch)
        if sees:
            found = _with_projector(found, checkpoint)
    else:
        found = (_read_multimodal if sees else _read_safetensors)(checkpoint, arch)
    shapes = {
        name: tensor.shape
        for name, tensor in checkpoint.tensors.items()
        if name.startswith(found.prefix)
    }
    ignored = [
        found.prefix + start.format(layers=len(found.spec.layers)) for start in found.ignored
    ]
    check_tensors(found.parameters, shapes, ignored, checkpoint.model_id)
    spec = found.spec if max_edge is None else with_longest_edge(found.spec, max_edge)
    return Description(spec, tuple(found.parameters))


class _Read(NamedTuple):
    """A model's parts and tensors; what the names of these start with, and of others beside."""

    spec: ModelSpec
    parameters: list[Parameter]
    prefix: str = ""
    ignored: tuple[str, ...] = ()


def _read_gguf(checkpoint: _Checkpoint, arch: str | None) -> _Read:
    metadata, where = checkpoint.config, checkpoint.model_id
    family = family_by_name(arch) if arch else family_by_gguf_arch(architecture(metadata, where))
    shapes = {name: tensor.shape for name, tensor in checkpoint.tensors.items()}
    spec = family.read(Config(config_from_gguf(metadata, shapes, family.gguf_keys, where), where))
    if family.gguf_rope_interleaved:
        spec = spec.with_interleaved_rope()
    parameters = list_parameters(spec, {**GGUF, **family.gguf}, shapes)
    return _Read(spec, parameters, ignored=family.ignored)


#: What safetensors files store otherwise than it is used, and GGUF files as it is used.
_CHANGES: dict[Kind, WeightTransform] = {"decay": "negative_exp"}


def _read_safetensors(checkpoint: _Checkpoint, arch: str | None) -> _Read:
    where = checkpoint.model_id
    values, prefix = text_part(checkpoint.config, checkpoint.tensors)
    name = arch or _model_type(values, where)
    # Not looked for without need: all families that see would be imported.
    may_see = any(key in values for key in TOWER_KEYS)
    around = find_vision_family(name) if may_see else None
    if around is not None and around.tower_key in values:
        found = _read_inside(checkpoint, around)
        return found._replace(
            ignored=found.ignored + vision_tensor_prefixes(around, checkpoint.tensors)
        )
    family = family_by_name(name)
    config = Config({**family.defaults, **values}, where)
    whole = family.read(config)
    spec = whole.for_text_alone()
    names = {**SAFETENSORS, **family.safetensors}
    parameters = _bound(checkpoint, family, config, spec, names, prefix)
    left_out = set(range(len(whole.layers))) - set(spec.layer_numbers)
    unused = (names["layer"].format(layer=number) for number in sorted(left_out))
    return _Read(spec, parameters, prefix, (*family.ignored, *unused))


def _read_multimodal(checkpoint: _Checkpoint, arch: str | None) -> _Read:
    where = checkpoint.model_id
    family = vision_family(arch or _model_type(checkpoint.config, where), where)
    found = _read_inside(checkpoint, family)
    model = Config({**family.defaults, **checkpoint.config}, where)
    spec, seeing = see(family, model, checkpoint.image_config, found.spec, checkpoint.tensors)
    return found._replace(spec=spec, parameters=found.parameters + seeing)


def _with_projector(found: _Read, checkpoint: _Checkpoint) -> _Read:
    """What a GGUF file holds, and what its projector's file adds."""
    spec, seeing = describe_mmproj(
        checkpoint.image_config,
        checkpoint.config.get("tokenizer.ggml.tokens", ()),
        found.spec,
        checkpoint.tensors,
        checkpoint.model_id,
    )
    return found._replace(spec=spec, parameters=found.parameters + seeing)


def _read_inside(checkpoint: _Checkpoint, family: VisionFamily) -> _Read:
    """The language model inside a checkpoint that sees."""
    model = Config({**family.defaults, **checkpoint.config}, checkpoint.model_id)
    text = text_of(family, model, checkpoint.tensors)
    spec = text.family.read(text.config)
    if family.refine is not None:
        spec = family.refine(spec, model)
    parameters = _bound(checkpoint, text.family, text.config, spec, text.names)
    return _Read(spec, parameters, ignored=text.family.ignored + family.ignored)


def _bound(
    checkpoint: _Checkpoint,
    family: Family,
    config: Config,
    spec: ModelSpec,
    names: Mapping[str, str],
    prefix: str = "",
) -> list[Parameter]:
    """The parameters of a text model in safetensors files."""
    quantization = read_quantization(config)
    parameters = list_parameters(
        spec,
        names,
        checkpoint.tensors,
        tensor_prefix=prefix,
        changes={**_CHANGES, "norm": "plus_one"} if family.norm_plus_one else _CHANGES,
    )
    if quantization is not None:
        parameters = with_scales(parameters, quantization, checkpoint.tensors)
    return parameters


def _model_type(config: Mapping[str, Any], where: str) -> str:
    name = config.get("model_type")
    if not isinstance(name, str):
        raise NotReadable(
            "the configuration lacks 'model_type'", where=where, hint="name the family with --arch"
        )
    return name


def text_part(config: Mapping[str, Any], tensors: Collection[str]) -> tuple[Mapping[str, Any], str]:
    """(config, prefix of tensor names) of the language model; ("as it is", "") where it is alone.

    Whether its head is tied is said in either of two configs, and by the tensors for certain.
    """
    text = config.get("text_config")
    if not isinstance(text, Mapping) or not any(name.startswith(_PREFIX) for name in tensors):
        return config, ""
    tied = f"{_PREFIX}lm_head.weight" not in tensors
    quantization = config.get("quantization_config")
    return {"quantization_config": quantization, **text, "tie_word_embeddings": tied}, _PREFIX
