"""The request of a model whose weights are read from UQFF files, or written to some."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mrs.errors import UsageError
from mrs.request import RunRequest
from mrs.source.folder import LocalFolder
from mrs.source.reader import expanded, kind_of
from mrs.source.uqff_files import RESIDUAL, only_uqff
from mrs.topology import Topology

_logger = logging.getLogger(__name__)


def _names(given: Sequence[str] | None) -> tuple[str, ...]:
    """The names in the values of --from-uqff, several of which may be joined by semicolons."""
    return tuple(name.strip() for text in given or () for name in text.split(";") if name.strip())


def folder_of(given: Sequence[str]) -> str:
    """The folder of files that are named without -m. Raises UsageError."""
    names = _names(given)
    if not names or not all(name.endswith(".uqff") for name in names):
        raise UsageError("no model is given", hint="add -m ID, or give --from-uqff a path")
    return str(Path(names[0]).parent)


def with_uqff(
    request: RunRequest, from_uqff: Sequence[str] | None, write_uqff: str | None
) -> RunRequest:
    """`request` with the weights of these files, or with the path to write to. Raises UsageError.

    Weights in UQFF files are quantized already: --isq and the isq of a topology have no effect.
    """
    names = _names(from_uqff)
    if not names and write_uqff is None and (only := _only_file(request.source.model_id)):
        names = (only,)
    if not names:
        return request if write_uqff is None else replace(request, write_uqff=write_uqff)
    if write_uqff is not None:
        raise UsageError("--from-uqff and --write-uqff exclude each other", hint="give one of them")
    if request.isq is not None:
        _logger.warning("--isq %s has no effect: the UQFF files are quantized", request.isq)
    files = tuple(_in_folder(name, request.source.model_id) for name in names)
    return replace(
        request,
        source=replace(request.source, uqff=files),
        isq=None,
        topology=request.topology and _placing(request.topology),
    )


def _only_file(model_id: str) -> str | None:
    """The file in a folder that has no other weights than those of one set of UQFF files."""
    path = expanded(model_id)
    if kind_of(path) != "folder":
        return None
    folder = LocalFolder(path)
    others = (".safetensors", ".gguf")
    if any(name.endswith(others) and name != RESIDUAL for name in folder.names()):
        return None
    return only_uqff(folder)


def _in_folder(name: str, model_id: str) -> str:
    """The name of a file in the model's folder; `name` may be its path. Raises UsageError."""
    path = Path(name)
    if path.name == name or kind_of(expanded(model_id) / name) == "file":
        return name if not path.is_absolute() else _inside(path, model_id)
    return _inside(path, model_id)


def _inside(path: Path, model_id: str) -> str:
    if expanded(str(path)).resolve().parent != expanded(model_id).resolve():
        raise UsageError(
            f"{path} is not in the folder of the model",
            where=model_id,
            hint="give -m the folder of the file, which has the rest of the model, too",
        )
    return path.name


def _placing(topology: Topology) -> Topology | None:
    rules = tuple(replace(rule, isq=None) for rule in topology.rules if rule.device is not None)
    return replace(topology, rules=rules) if rules else None
