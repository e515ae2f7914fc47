"""Find the family of a checkpoint and describe the model in it."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, Protocol

from mrs.errors import NotReadable, Unsupported
from mrs.families.config import Config
from mrs.families.family import Family
from mrs.families.gguf_config import architecture, config_from_gguf
from mrs.families.names import GGUF, IGNORED_SUFFIXES, SAFETENSORS
from mrs.families.parameters import list_parameters
from mrs.families.spec import ModelSpec, Parameter


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
    where = checkpoint.model_id
    shapes = {name: tensor.shape for name, tensor in checkpoint.tensors.items()}
    if checkpoint.container == "gguf":
        family = _by_name(arch) if arch else _by_gguf_arch(architecture(checkpoint.config, where))
        values = config_from_gguf(checkpoint.config, shapes, family.gguf_keys, where)
        names = {**GGUF, **family.gguf}
    else:
        family = _by_name(arch or _model_type(checkpoint.config, where))
        values = {**family.defaults, **checkpoint.config}
        names = {**SAFETENSORS, **family.safetensors}
    config = Config(values, where)
    config.refuse("quantization_config")
    is_gguf = checkpoint.container == "gguf"
    spec = family.read(config)
    if is_gguf and family.gguf_rope_interleaved:
        spec = spec.with_interleaved_rope()
    parameters = list_parameters(spec, names, norm_plus_one=family.norm_plus_one and not is_gguf)
    _check(parameters, shapes, where)
    return Description(spec, tuple(parameters))


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
    for parameter in parameters:
        for piece in parameter.pieces:
            if piece.tensor not in shapes:
                raise NotReadable(
                    f"the tensor {piece.tensor!r} is missing",
                    where=where,
                    hint="the file is incomplete or belongs to another architecture",
                )
            rows_read[piece.tensor] = rows_read.get(piece.tensor, 0) + parameter.shape[0]
            shape = shapes[piece.tensor]
            if not shape or shape[1:] != parameter.shape[1:]:
                raise _misshapen(piece.tensor, shape, parameter.shape, where)
    for tensor, rows in rows_read.items():
        if shapes[tensor][0] != rows:
            raise _misshapen(tensor, shapes[tensor], (rows, *shapes[tensor][1:]), where)
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
