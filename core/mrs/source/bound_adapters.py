"""Add the LoRA adapters of a request to a model: to its headers and its description."""

from __future__ import annotations

from mrs.architecture.description import Description
from mrs.errors import Unsupported, UsageError
from mrs.request import RunRequest
from mrs.source.checkpoint import Checkpoint


def add_adapters(
    checkpoint: Checkpoint, description: Description, request: RunRequest
) -> tuple[Checkpoint, Description]:
    """The same model with the adapters of the request; reads their headers.

    Raises UsageError for names that are not unique, and what opening and binding raise.
    """
    if not request.adapters:
        return checkpoint, description
    _check(request)
    from mrs.architecture.adapters.bind_adapters import with_adapters
    from mrs.source.adapter_files import open_adapter, with_adapter_files

    opened = [open_adapter(each, request.source) for each in request.adapters]
    bound = with_adapters(description, checkpoint, opened, request.arch)
    return with_adapter_files(checkpoint, opened), bound


def _check(request: RunRequest) -> None:
    names = [each.name for each in request.adapters if not each.is_merged]
    for name in names:
        if not name or names.count(name) > 1:
            raise UsageError(f"the adapters have no unique names: {', '.join(names)}")
    if names and request.cluster is not None:
        raise Unsupported(
            "requests cannot choose adapters of a model in several processes",
            hint="add one to the weights with: mrs lora -m ID -a ADAPTER",
        )
