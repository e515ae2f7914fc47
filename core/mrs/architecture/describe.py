"""Describe the model in a checkpoint: find its family, read its config, bind its tensors."""

from __future__ import annotations

from mrs.architecture.check import check_tensors
from mrs.architecture.describe_safetensors import has_tower, read_safetensors
from mrs.architecture.description import CheckpointHeaders, Description, ReadModel
from mrs.architecture.family_registry import UnknownFamily
from mrs.architecture.leftovers import leftover_warnings
from mrs.errors import Unsupported


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
    model = _read(checkpoint, arch, with_vision=with_vision)
    leftovers = _check_tensors(model, checkpoint)
    spec = model.spec
    if max_edge is not None:
        from mrs.architecture.vision.describe_vision import with_longest_edge

        spec = with_longest_edge(spec, max_edge)
    head = None
    if model.head is not None:
        head = Description(model.head.spec, tuple(model.head.parameters))
    warnings = model.warnings + leftovers
    return Description(spec, tuple(model.parameters), warnings=warnings, head=head)


def _read(checkpoint: CheckpointHeaders, arch: str | None, *, with_vision: bool) -> ReadModel:
    if checkpoint.container == "gguf":
        from mrs.architecture.describe_gguf import read_gguf

        return read_gguf(checkpoint, arch, with_vision=with_vision)
    if with_vision:
        from mrs.architecture.vision.describe_vision import read_multimodal

        return read_multimodal(checkpoint, arch)
    if has_tower(checkpoint):
        from mrs.architecture.vision.describe_vision import read_without_tower

        if (model := read_without_tower(checkpoint, arch)) is not None:
            return model
    try:
        return read_safetensors(checkpoint, arch)
    except UnknownFamily as error:
        from mrs.architecture.vision.describe_vision import find_vision_family

        if find_vision_family(error.name) is None:
            raise
        reason = f"a {error.name} model takes more than text"
        raise Unsupported(reason, hint="use vision-plain") from error


def _check_tensors(model: ReadModel, checkpoint: CheckpointHeaders) -> tuple[str, ...]:
    """The warning about tensors that are not used, if there are any."""
    tensors, where = checkpoint.tensors, checkpoint.model_id
    used = set(check_tensors(model.parameters, tensors, where))
    if model.head is not None:
        used.update(check_tensors(model.head.parameters, tensors, where))
    unread = tuple(model.prefix + prefix for prefix in model.unread)
    others = [name for name in tensors if not (unread and name.startswith(unread))]
    ignored = [
        model.prefix + prefix.format(layers=len(model.spec.layers)) for prefix in model.ignored
    ]
    return leftover_warnings(others, used, ignored, where)
