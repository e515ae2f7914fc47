"""Find the family of a checkpoint and describe the model in it."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from math import prod
from typing import Any, Protocol

from mrs.errors import NotReadable, Unsupported
from mrs.families.config import Config
from mrs.families.family import Family
from mrs.families.gguf_config import architecture, config_from_gguf
from mrs.families.names import GGUF, IGNORED_SUFFIXES, SAFETENSORS
from mrs.families.parameters import list_parameters
from mrs.families.spec import ModelSpec, Parameter
from mrs.families.text_part import text_part


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
    def tensors(self) -> Mapping[str, _Tensor]: ...


@dataclass(frozen=True)
class Description:
    """A model as planner and loader see it: its parts, and every tensor with its place."""

    spec: ModelSpec
    parameters: tuple[Parameter, ...]


@cache
def families() -> dict[str, Family]:
    """Every family by its name: one module of this package each, with a `FAMILY`."""
    package = import_module("mrs.families")
    modules = (
        import_module(f"mrs.families.{m.name}") for m in pkgutil.iter_modules(package.__path__)
    )
    found = [module.FAMILY for module in modules if hasattr(module, "FAMILY")]
    return {family.name: family for family in sorted(found, key=lambda f: f.name)}


def describe(checkpoint: _Checkpoint, arch: str | None = None) -> Description:
    """Read the model's parts and bind its tensors, from the header alone.

    `arch` forces a family. Raises Unsupported for a family, feature or extra tensor that cannot
    be run and NotReadable for a missing or misshapen tensor or config key.
    """
    read = _read_gguf if checkpoint.container == "gguf" else _read_safetensors
    spec, parameters, prefix = read(checkpoint, arch)
    shapes = {
        name: tensor.shape for name, tensor in checkpoint.tensors.items() if name.startswith(prefix)
    }
    _check(parameters, shapes, checkpoint.model_id)
    return Description(spec, tuple(parameters))


#: What a container says of a model: its parts, its tensors, and what their names start with.
_Read = tuple[ModelSpec, list[Parameter], str]


def _read_gguf(checkpoint: _Checkpoint, arch: str | None) -> _Read:
    metadata, where = checkpoint.config, checkpoint.model_id
    family = _by_name(arch) if arch else _by_gguf_arch(architecture(metadata, where))
    shapes = {name: tensor.shape for name, tensor in checkpoint.tensors.items()}
    spec = family.read(Config(config_from_gguf(metadata, shapes, family.gguf_keys, where), where))
    if family.gguf_rope_interleaved:
        spec = spec.with_interleaved_rope()
    return spec, list_parameters(spec, {**GGUF, **family.gguf}, shapes), ""


def _read_safetensors(checkpoint: _Checkpoint, arch: str | None) -> _Read:
    where = checkpoint.model_id
    values, prefix = text_part(checkpoint.config, checkpoint.tensors)
    family = _by_name(arch or _model_type(values, where))
    config = Config({**family.defaults, **values}, where)
    config.refuse("quantization_config")
    spec = family.read(config)
    names = {**SAFETENSORS, **family.safetensors}
    parameters = list_parameters(
        spec,
        names,
        checkpoint.tensors,
        tensor_prefix=prefix,
        norm_plus_one=family.norm_plus_one,
    )
    return spec, parameters, prefix


def _model_type(config: Mapping[str, Any], where: str) -> str:
    name = config.get("model_type")
    if not isinstance(name, str):
        raise NotReadable(
            "the configuration lacks 'model_type'", where=where, hint="name the family with --arch"
        )
    return name


def _by_name(name: str) -> Family:
    wanted = name.lower().replace("-", "_")
    for family in families().values():
        if wanted in (family.name, *family.aliases):
            return family
    raise _unknown(name)


def _by_gguf_arch(arch: str) -> Family:
    for family in families().values():
        if family.gguf_arch == arch:
            return family
    raise _unknown(arch)


def _unknown(name: str) -> Unsupported:
    return Unsupported(
        f"the architecture {name!r} is not known", hint=f"known are {', '.join(families())}"
    )


def _check(parameters: list[Parameter], shapes: Mapping[str, tuple[int, ...]], where: str) -> None:
    """Hold the file's tensors against the model's: none missing, misshapen or left over."""
    rows_read: dict[str, int] = {}
    columns_of: dict[str, tuple[int, ...]] = {}
    for parameter in parameters:
        for piece in parameter.pieces:
            if piece.tensor not in shapes:
                raise NotReadable(
                    f"the tensor {piece.tensor!r} is missing",
                    where=where,
                    hint="the file is incomplete or belongs to another architecture",
                )
            rows = parameter.rows if piece.rows is None else len(piece.rows)
            rows_read[piece.tensor] = rows_read.get(piece.tensor, 0) + rows
            columns_of[piece.tensor] = parameter.shape[1:][-1:]
    for tensor, rows in rows_read.items():
        columns, shape = columns_of[tensor], shapes[tensor]
        if prod(shape) != rows * prod(columns) or (columns and shape[-1:] != columns):
            raise _misshapen(tensor, shape, (rows, *columns), where)
    for name in shapes:
        if name in rows_read or name.endswith(IGNORED_SUFFIXES):
            continue
        raise Unsupported(
            f"the tensor {name!r} has no place in this architecture",
            where=where,
            hint="force another one with --arch, or the model has a part that is not known",
        )


def _misshapen(
    tensor: str, found: tuple[int, ...], expected: tuple[int, ...], where: str
) -> NotReadable:
    return NotReadable(
        f"the tensor {tensor!r} has shape {list(found)}, expected {list(expected)}", where=where
    )
