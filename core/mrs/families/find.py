"""Find the family of a checkpoint and describe the model in it."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, Protocol

from mrs.errors import NotReadable, Unsupported
from mrs.families.check import check_tensors
from mrs.families.config import Config
from mrs.families.family import Family
from mrs.families.gguf_config import architecture, config_from_gguf
from mrs.families.names import GGUF, SAFETENSORS
from mrs.families.parameters import list_parameters
from mrs.families.quantization import read_quantization, with_scales
from mrs.families.slots import Kind
from mrs.families.spec import Change, ModelSpec, Parameter
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
    family, spec, parameters, prefix = read(checkpoint, arch)
    shapes = {
        name: tensor.shape for name, tensor in checkpoint.tensors.items() if name.startswith(prefix)
    }
    ignored = [prefix + start.format(layers=len(spec.layers)) for start in family.ignored]
    check_tensors(parameters, shapes, ignored, checkpoint.model_id)
    return Description(spec, tuple(parameters))


#: A model's family, parts and tensors, and what the names of these start with in its container.
_Read = tuple[Family, ModelSpec, list[Parameter], str]


def _read_gguf(checkpoint: _Checkpoint, arch: str | None) -> _Read:
    metadata, where = checkpoint.config, checkpoint.model_id
    family = _by_name(arch) if arch else _by_gguf_arch(architecture(metadata, where))
    shapes = {name: tensor.shape for name, tensor in checkpoint.tensors.items()}
    spec = family.read(Config(config_from_gguf(metadata, shapes, family.gguf_keys, where), where))
    if family.gguf_rope_interleaved:
        spec = spec.with_interleaved_rope()
    return family, spec, list_parameters(spec, {**GGUF, **family.gguf}, shapes), ""


#: What safetensors files store otherwise than it is used, and GGUF files as it is used.
_CHANGES: dict[Kind, Change] = {"decay": "negative_exp"}


def _read_safetensors(checkpoint: _Checkpoint, arch: str | None) -> _Read:
    where = checkpoint.model_id
    values, prefix = text_part(checkpoint.config, checkpoint.tensors)
    family = _by_name(arch or _model_type(values, where))
    config = Config({**family.defaults, **values}, where)
    quantization = read_quantization(config)
    spec = family.read(config)
    names = {**SAFETENSORS, **family.safetensors}
    parameters = list_parameters(
        spec,
        names,
        checkpoint.tensors,
        tensor_prefix=prefix,
        changes={**_CHANGES, "norm": "plus_one"} if family.norm_plus_one else _CHANGES,
    )
    if quantization is not None:
        parameters = with_scales(parameters, quantization, checkpoint.tensors)
    return family, spec, parameters, prefix


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
