"""The modules that a LoRA adapter changes, by the tensors in its file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from mrs.architecture.adapters.lora_config import LoraConfig
from mrs.errors import NotReadable, Unsupported
from mrs.weights.weight_scheme import TensorHeader

Tensors = Mapping[str, TensorHeader]

_PREFIX = "base_model.model."
#: The tensors of a module, in files of older versions with the name of the adapter.
_TENSOR = re.compile(
    r"(?P<module>.+)\.lora_(?P<role>A|B|embedding_A|embedding_B|magnitude_vector)"
    r"(\.(?!weight$)[^.]+)?(\.weight)?"
)
_WHOLE = re.compile(r"(?P<module>.+?)(\.modules_to_save(\.[^.]+)?|\.base_layer)?\.weight")
_FLOATS = ("F32", "F16", "BF16", "F64")


class LoraModule(NamedTuple):
    """A module whose weight gets `scale` * B @ A, or the transposed product for an embedding.

    `a`, `b` and `magnitude` are names of tensors in the adapter's file.
    """

    name: str
    rank: int
    scale: float
    a: str
    b: str
    is_embedding: bool = False
    magnitude: str | None = None


@dataclass(frozen=True)
class LoraModules:
    """What an adapter changes, by module names; `whole` are tensors that replace a weight."""

    modules: Mapping[str, LoraModule]
    whole: Mapping[str, str]


def read_lora_modules(config: LoraConfig, tensors: Tensors, where: str) -> LoraModules:
    """Raises NotReadable for tensors that do not fit each other or the config, Unsupported for
    tensors of other methods. Shapes are compared with those of the model by who knows it."""
    parts: dict[str, dict[str, str]] = {}
    whole: dict[str, str] = {}
    for name, header in tensors.items():
        if header.format.name not in _FLOATS:
            raise NotReadable(f"the tensor {name!r} is of type {header.format.name}", where=where)
        path = name.removeprefix(_PREFIX)
        if match := _TENSOR.fullmatch(path):
            parts.setdefault(match["module"], {})[match["role"]] = name
        elif ".lora_" not in path and (match := _WHOLE.fullmatch(path)):
            whole[match["module"]] = name
        else:
            raise Unsupported(f"the tensor {name!r} is not one of a LoRA adapter", where=where)
    if not parts and not whole:
        raise NotReadable("the adapter has no tensors", where=where)
    modules = {name: _module(name, of, config, tensors, where) for name, of in parts.items()}
    return LoraModules(modules, whole)


def _module(
    name: str, parts: Mapping[str, str], config: LoraConfig, tensors: Tensors, where: str
) -> LoraModule:
    if not config.changes(name):
        raise NotReadable(
            f"the adapter has tensors for {name!r}, which its config does not name", where=where
        )
    is_embedding = "embedding_A" in parts or "embedding_B" in parts
    a, b = ("embedding_A", "embedding_B") if is_embedding else ("A", "B")
    for role in (a, b, *(["magnitude_vector"] if config.uses_dora else [])):
        if role not in parts:
            raise NotReadable(f"the tensor lora_{role} of {name!r} is missing", where=where)
    unused = parts.keys() - {a, b, *(["magnitude_vector"] if config.uses_dora else [])}
    if unused:
        raise NotReadable(f"the config does not explain {parts[min(unused)]!r}", where=where)
    if is_embedding and config.uses_dora:
        raise Unsupported(f"DoRA of the embedding {name!r} is not supported", where=where)
    rank = config.rank_of(name)
    for part, axis in ((a, 0), (b, 1)):
        shape = tensors[parts[part]].shape
        if len(shape) != 2 or shape[axis] != rank or rank < 1:
            raise NotReadable(
                f"the tensor {parts[part]!r} has shape {list(shape)}, expected rank {rank}",
                where=where,
            )
    scale = config.scale_of(name, rank)
    magnitude = parts.get("magnitude_vector")
    return LoraModule(name, rank, scale, parts[a], parts[b], is_embedding, magnitude)
