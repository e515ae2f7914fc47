"""Describe the model in GGUF files, with the vision part of an mmproj file if it is wanted."""

from __future__ import annotations

from collections.abc import Mapping

from mrs.architecture.description import CheckpointHeaders, ReadModel
from mrs.architecture.draft_head import HeadModel, read_head
from mrs.architecture.family import Family
from mrs.architecture.family_registry import family_by_gguf_arch, family_by_name
from mrs.architecture.gguf_config import PREDICTING, architecture, config_from_gguf
from mrs.architecture.gguf_names import GGUF
from mrs.architecture.gguf_unused import unused_gguf_keys, unused_tokenizer_keys
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.parameters import list_parameters
from mrs.architecture.pooler_config import with_pooling
from mrs.config.config import Config
from mrs.config.layer_kinds import layer_count
from mrs.weights.binding import Parameter


def read_gguf(checkpoint: CheckpointHeaders, arch: str | None, *, with_vision: bool) -> ReadModel:
    metadata, where = checkpoint.config, checkpoint.model_id
    family = family_by_name(arch) if arch else family_by_gguf_arch(architecture(metadata, where))
    shapes = {name: tensor.shape for name, tensor in checkpoint.tensors.items()}
    config = config_from_gguf(metadata, shapes, family.gguf_keys, where)
    read = Config({**family.gguf_defaults, **config}, where)
    spec, pooler_names = with_pooling(family.read(read), read)
    if family.gguf_rope_interleaved:
        spec = spec.with_interleaved_rope()
    names = {**GGUF, **family.gguf, **pooler_names}
    parameters = list_parameters(spec, names, shapes)
    head = () if spec.pooler is None else ("output.",)
    ignored = (*family.ignored, *head, *_predicting_layers(read))
    unread = (*family.unread, *spec.unused_names(names))
    prefix = f"{architecture(metadata, where)}."
    unused = unused_gguf_keys(metadata, prefix, read, family.gguf_keys, spec)
    unused += unused_tokenizer_keys(metadata)
    warnings = [f"keys of the GGUF file that are not used: {', '.join(unused)}"] if unused else []
    model = ReadModel(
        spec,
        parameters,
        ignored=ignored,
        unread=unread,
        warnings=tuple(warnings),
        head=_head(checkpoint, family, read, spec, names, shapes),
    )
    return _with_mmproj(model, checkpoint, shapes) if with_vision else model


def _head(
    checkpoint: CheckpointHeaders,
    family: Family,
    config: Config,
    spec: ModelSpec,
    names: Mapping[str, str],
    shapes: Mapping[str, tuple[int, ...]],
) -> HeadModel | None:
    """The draft head, in the first of the layers that predict tokens after the next one."""
    files = family.head
    if files is None:
        return None

    def bind(head: ModelSpec, own: Mapping[str, str]) -> list[Parameter]:
        return list_parameters(head, own, shapes)

    return read_head(files, config, spec, names, files.gguf, checkpoint.tensors, bind)


def _predicting_layers(config: Config) -> list[str]:
    """The prefixes of the layers that predict tokens after the next one."""
    if not config.integer(PREDICTING, 0):
        return []
    count = layer_count(config)
    return [f"blk.{count + index}." for index in range(layer_count(config, PREDICTING))]


def _with_mmproj(
    model: ReadModel, checkpoint: CheckpointHeaders, shapes: Mapping[str, tuple[int, ...]]
) -> ReadModel:
    """Add the vision tower and projector of an mmproj file to a GGUF model."""
    from mrs.architecture.vision.mmproj import describe_mmproj

    spec, vision_parameters, projector = describe_mmproj(
        checkpoint.image_config,
        checkpoint.config,
        model.spec,
        shapes,
        checkpoint.model_id,
    )
    return model._replace(
        spec=spec,
        parameters=model.parameters + vision_parameters,
        ignored=model.ignored + projector.ignored,
        unread=model.unread + projector.unread,
    )
