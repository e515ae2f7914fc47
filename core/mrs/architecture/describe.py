"""Describe the model in a checkpoint: find its family, read its config, bind its tensors."""

from __future__ import annotations

from dataclasses import dataclass

from mrs.architecture.binding import Parameter
from mrs.architecture.check import check_tensors
from mrs.architecture.config import Config
from mrs.architecture.describe_safetensors import (
    CheckpointHeaders,
    ReadModel,
    read_multimodal,
    read_safetensors,
)
from mrs.architecture.family_registry import family_by_gguf_arch, family_by_name
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.parameters import list_parameters
from mrs.architecture.readers.gguf_reader import architecture, config_from_gguf
from mrs.architecture.tensor_names import GGUF
from mrs.architecture.vision.describe_vision import with_longest_edge
from mrs.architecture.vision.mmproj import describe_mmproj


@dataclass(frozen=True)
class Description:
    """What planner and loader know of a model: its architecture and all of its parameters."""

    spec: ModelSpec
    parameters: tuple[Parameter, ...]


def describe(
    checkpoint: CheckpointHeaders,
    arch: str | None = None,
    *,
    with_vision: bool = False,
    max_edge: int | None = None,
) -> Description:
    """Describe the model in a checkpoint; reads the headers only, no weights.

    `arch` forces a family. `with_vision` includes the vision tower and the projector; images are
    then scaled down until no edge is longer than `max_edge` pixels. Raises Unsupported for a
    family, feature or tensor that is not supported, NotReadable for a missing config key and for a
    tensor that is missing or has a wrong shape, UsageError if `max_edge` would have no effect.
    """
    if checkpoint.container == "gguf":
        found = _read_gguf(checkpoint, arch)
        if with_vision:
            found = _with_mmproj(found, checkpoint)
    else:
        found = (read_multimodal if with_vision else read_safetensors)(checkpoint, arch)
    _check_tensors(found, checkpoint)
    spec = found.spec if max_edge is None else with_longest_edge(found.spec, max_edge)
    return Description(spec, tuple(found.parameters))


def _check_tensors(found: ReadModel, checkpoint: CheckpointHeaders) -> None:
    shapes = {
        name: tensor.shape
        for name, tensor in checkpoint.tensors.items()
        if name.startswith(found.prefix)
    }
    ignored = [
        found.prefix + prefix.format(layers=len(found.spec.layers)) for prefix in found.ignored
    ]
    check_tensors(found.parameters, shapes, ignored, checkpoint.model_id)


def _read_gguf(checkpoint: CheckpointHeaders, arch: str | None) -> ReadModel:
    metadata, where = checkpoint.config, checkpoint.model_id
    family = family_by_name(arch) if arch else family_by_gguf_arch(architecture(metadata, where))
    shapes = {name: tensor.shape for name, tensor in checkpoint.tensors.items()}
    spec = family.read(Config(config_from_gguf(metadata, shapes, family.gguf_keys, where), where))
    if family.gguf_rope_interleaved:
        spec = spec.with_interleaved_rope()
    parameters = list_parameters(spec, {**GGUF, **family.gguf}, shapes)
    return ReadModel(spec, parameters, ignored=family.ignored)


def _with_mmproj(found: ReadModel, checkpoint: CheckpointHeaders) -> ReadModel:
    """Add the vision tower and projector of an mmproj file to a GGUF model."""
    spec, vision_parameters = describe_mmproj(
        checkpoint.image_config,
        checkpoint.config.get("tokenizer.ggml.tokens", ()),
        found.spec,
        checkpoint.tensors,
        checkpoint.model_id,
    )
    return found._replace(spec=spec, parameters=found.parameters + vision_parameters)
