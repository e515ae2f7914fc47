"""How each parameter is kept on its device: the answer that planner and loader share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from mrs.errors import NotReadable
from mrs.families.spec import Parameter, Role
from mrs.formats import FORMATS, Format
from mrs.isq import isq_format
from mrs.request import Dtype
from mrs.sizes.packed import PACKED_FORMATS, packed_bytes

_DTYPE_FORMATS = {"bf16": "BF16", "f16": "F16", "f32": "F32"}
#: How `--dtype` spells the dense formats.
DTYPE_NAMES: dict[str, Dtype] = {"BF16": "bf16", "F16": "f16", "F32": "f32"}

#: A plain tensor of numbers; rows packed for the native kernels; or blocks, in as many bytes as in
#: a file, which the device's kernels multiply or which are decoded for every product.
Form = Literal["plain", "packed", "blocks"]


@dataclass(frozen=True)
class Storage:
    """One parameter in memory: its format, exact bytes and form."""

    format: Format
    size_bytes: int
    form: Form = "plain"


def resolve_dtype(wanted: str, stored: Mapping[Format, int]) -> Format:
    """The dense format of weights and KV cache: `wanted`, or with `auto` that of the file.

    `stored` counts the file's tensors of each format. A file of quantized blocks, which names none, is run in bf16.
    """
    if wanted != "auto":
        return FORMATS[_DTYPE_FORMATS[wanted]]
    dense = [f for f in stored if f.name in _DTYPE_FORMATS.values()]
    if not dense or any(f.is_quantized for f in stored):
        return FORMATS["BF16"]
    return max(dense, key=stored.__getitem__)


@dataclass(frozen=True)
class StorageRules:
    """What decides how a device keeps its parameters.

    `dense` is the type of what is not quantized, `level` that of `--isq`, and `packs` says that
    the native kernels multiply on this device.
    """

    dense: Format
    level: Format | None = None
    packs: bool = False


def store(parameter: Parameter, stored: Sequence[Format], rules: StorageRules) -> Storage:
    """How a parameter is kept whose pieces the file has in the formats `stored`.

    Vectors stay in float32. Matrices are quantized as the file or `--isq` says where all pieces
    end up in one format, the others take the dense format. So does what native kernels do not
    multiply: beside them, decoding it for every token would take most of the time. Raises
    NotReadable for a vector in blocks, which no program writes.
    """
    if parameter.role == "vector" and any(format.is_quantized for format in stored):
        raise NotReadable(f"the vector {parameter.pieces[0].tensor!r} is stored in blocks")
    return _store(parameter.role, parameter.shape, frozenset(stored), rules)


@lru_cache(maxsize=1024)
def _store(
    role: Role, shape: tuple[int, ...], stored: frozenset[Format], rules: StorageRules
) -> Storage:
    if role == "vector":
        return _plain(shape, FORMATS["F32"])
    if role == "dense":
        return _plain(shape, rules.dense)
    wanted = {_wanted(role, shape, format, rules.level) for format in stored}
    (kept,) = wanted if len(wanted) == 1 else {rules.dense}
    if not kept.is_quantized:
        kept = rules.dense
    if rules.packs and kept.name in PACKED_FORMATS:
        rows, columns = shape
        return Storage(kept, packed_bytes(kept, rows, columns), "packed")
    if kept.is_quantized and not rules.packs:
        return Storage(kept, kept.size_bytes(shape), "blocks")
    return _plain(shape, rules.dense)


def _wanted(role: Role, shape: tuple[int, ...], stored: Format, level: Format | None) -> Format:
    if level is None or role == "tower":
        return stored
    return isq_format(role, shape, level, stored)[0]


def _plain(shape: tuple[int, ...], kept: Format) -> Storage:
    return Storage(kept, kept.size_bytes(shape))
