"""Quantized weights that a checkpoint stores in several tensors.

A scheme says which tensors these are, their layout in files and in memory, and how they are
unpacked. The schemes of each method are in `mrs.quantization`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol

from mrs.errors import NotReadable
from mrs.formats import Format

if TYPE_CHECKING:
    from torch import Tensor


class TensorHeader(Protocol):
    """The fields of `mrs.source.TensorInfo` that schemes read."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def format(self) -> Format: ...
    @property
    def size_bytes(self) -> int: ...


class Header(NamedTuple):
    """Shape and format of one part of a weight."""

    shape: tuple[int, ...]
    format: Format


#: The parts of one weight by role.
Parts = Mapping[str, Header]


class Layout(NamedTuple):
    """A weight of some `rows`, quantized to `bits` in groups of `group` columns.

    `format` is that of its rows in memory, which has the same values; F32 if there is none, so
    that the rows are decoded while loading. If `is_permuted`, the groups are not adjacent columns:
    in memory, columns are sorted by group.
    """

    rows: int
    bits: int
    group: int
    format: Format
    is_permuted: bool = False


class PartReader(Protocol):
    """The parts of one weight by role, read from its files as new tensors of the part's type."""

    def __contains__(self, role: str) -> bool: ...
    def name(self, role: str) -> str: ...
    def shape(self, role: str) -> tuple[int, ...]: ...
    def whole(self, role: str) -> Tensor: ...
    def floats(self, role: str) -> Tensor:
        """The whole part in float32."""

    def rows(self, role: str, rows: range, width: int = 0) -> Tensor:
        """Adjacent rows of a part whose rows have `width` values, by default its last dimension."""

    def columns(self, role: str, columns: range) -> Tensor:
        """Adjacent columns of a part: (rows, columns)."""

    def bytes(self, role: str, span: range) -> Tensor:
        """Some bytes of a part of any type, uint8 (bytes,)."""


class Misfit(Exception):
    """A part whose header does not fit the others; the text goes on after the tensor's name."""

    def __init__(self, role: str, text: str) -> None:
        super().__init__(text)
        self.role = role


@dataclass(frozen=True)
class WeightScheme(ABC):
    """One way to store a weight. Subclasses are frozen values of what the config says.

    `suffixes` are those of the tensors by role. A suffix that begins with a dot replaces the
    `.weight` of the weight's name, any other is added to it. A weight is stored in this way if the
    file has its `marker`; roles in `optional` may be missing, and roles in `unused` are not read.
    """

    name: ClassVar[str]
    suffixes: ClassVar[Mapping[str, str]]
    marker: ClassVar[str]
    optional: ClassVar[Collection[str]] = ()
    unused: ClassVar[Collection[str]] = ()
    #: Whether processes can have some of a weight's columns each, whole blocks of its layout.
    shares_columns: ClassVar[bool] = True

    @abstractmethod
    def layout(self, parts: Parts, columns: int) -> Layout:
        """The layout of a weight of `columns` columns; Misfit if its headers are inconsistent."""

    @abstractmethod
    def unpack(self, layout: Layout, parts: PartReader, rows: range, columns: int) -> Tensor:
        """Adjacent rows as blocks of the layout's format: uint8 (R, row_bytes)."""

    def label(self, bits: int) -> str:
        """What a plan calls the scheme: `GPTQ 4-bit`, or `FP8`."""
        return self.name if self.name[-1].isdigit() else f"{self.name} {bits}-bit"

    def tensor(self, role: str, weight: str) -> str:
        suffix = self.suffixes[role]
        base = weight.removesuffix(".weight") if suffix.startswith(".") else weight
        return base + suffix

    def weight_of(self, tensor: str) -> str | None:
        """The weight whose marker a tensor is; None for another tensor."""
        suffix = self.suffixes[self.marker]
        if not tensor.endswith(suffix):
            return None
        return tensor.removesuffix(suffix) + (".weight" if suffix.startswith(".") else "")

    def bind(self, weight: str, tensors: Collection[str]) -> PackedWeight | None:
        """The tensors of a weight; None if the file does not store it in this way."""
        if self.tensor(self.marker, weight) not in tensors:
            return None
        names = [(role, self.tensor(role, weight)) for role in self.suffixes]
        absent = {role for role, name in names if name not in tensors}
        missing = absent.difference(self.optional, self.unused)
        if missing:
            name = self.tensor(min(missing), weight)
            raise NotReadable(
                f"the tensor {name!r} is missing",
                hint=f"a weight quantized by {self.name} has {len(self.suffixes)} tensors",
            )
        return PackedWeight(self, tuple((r, n) for r, n in names if r not in absent))


@dataclass(frozen=True)
class PackedWeight:
    """The tensors of one weight, as pairs of a role and a name, and the scheme of them.

    The weight has `all_columns` columns if a parameter consists of some of them.
    """

    scheme: WeightScheme
    tensors: tuple[tuple[str, str], ...]
    all_columns: int = 0

    def tensor(self, role: str) -> str:
        return dict(self.tensors)[role]

    def layout(self, headers: Mapping[str, TensorHeader], columns: int) -> Layout:
        """The layout of the weight, `columns` of whose columns are a parameter's.

        Raises NotReadable, with the name of the tensor, if the headers are inconsistent.
        """
        key = tuple((role, headers[name].shape, headers[name].format) for role, name in self.used)
        try:
            return _layout(self.scheme, key, self.all_columns or columns)
        except Misfit as error:
            raise NotReadable(f"the tensor {self.tensor(error.role)!r} {error}") from error

    @property
    def used(self) -> Iterator[tuple[str, str]]:
        """The tensors that are read, as pairs of a role and a name."""
        return (pair for pair in self.tensors if pair[0] not in self.scheme.unused)

    def file_bytes(self, headers: Mapping[str, TensorHeader]) -> int:
        return sum(headers[name].size_bytes for _, name in self.used)


@lru_cache(maxsize=1024)
def _layout(
    scheme: WeightScheme, parts: tuple[tuple[str, tuple[int, ...], Format], ...], columns: int
) -> Layout:
    return scheme.layout({role: Header(shape, format) for role, shape, format in parts}, columns)


def require(parts: Parts, role: str, formats: Collection[str], *shapes: tuple[int, ...]) -> None:
    """Misfit unless a part has one of these formats and, if any are given, of these shapes."""
    shape, format = parts[role]
    if format.name not in formats:
        raise Misfit(role, f"is of type {format.name}, expected {' or '.join(formats)}")
    if shapes and shape not in shapes:
        raise Misfit(role, f"has shape {list(shape)}, expected {list(shapes[0])}")


def matrix_shape(parts: Parts, role: str) -> tuple[int, int]:
    """The shape of a part that must be a matrix; its outer dimensions are flattened into rows."""
    shape = parts[role].shape
    if len(shape) < 2 or 0 in shape:
        raise Misfit(role, f"has shape {list(shape)}, which is no matrix")
    return prod(shape[:-1]), shape[-1]


def rows_of(parts: Parts, role: str, columns: int) -> int:
    """The rows of a part that must be a matrix of `columns` columns."""
    rows, stored_columns = matrix_shape(parts, role)
    if stored_columns != columns:
        raise Misfit(role, f"has {stored_columns} columns, expected {columns}")
    return rows


@dataclass(frozen=True)
class Quantization:
    """The schemes of a checkpoint; a weight is of the first one whose marker the file has.

    `stacks_experts` if one tensor has a matrix of all experts of a layer, as in UQFF files.
    """

    schemes: tuple[WeightScheme, ...] = field(default=())
    stacks_experts: bool = False

    def bind(self, weight: str, tensors: Collection[str]) -> PackedWeight | None:
        bound = (scheme.bind(weight, tensors) for scheme in self.schemes)
        return next((packed for packed in bound if packed is not None), None)

    def weights(self, tensors: Collection[str]) -> set[str]:
        """The names of all quantized weights of a checkpoint."""
        return {
            weight
            for scheme in self.schemes
            for name in tensors
            if (weight := scheme.weight_of(name)) is not None
        }
