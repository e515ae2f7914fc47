"""Decodes the values in GGUF headers, fetching only as many bytes as needed.

Nothing behind the header is read: its own counts give its minimum size (each string has a length
field, each tensor a fixed part), and each read goes up to that point. A header with a vocabulary
takes a few dozen reads, and a count that exceeds the file is an error before any allocation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from struct import error as StructError
from typing import Any, Literal, overload

from mrs.errors import NotReadable
from mrs.source.incomplete import AGAIN
from mrs.source.reader import ByteReader

ByteOrder = Literal["little", "big"]

#: Value types by number, as struct codes; a bool is a byte.
SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
STRING = 8
ARRAY = 9
#: More nesting than any writer produces; protects the stack from hostile files.
MAX_DEPTH = 16
#: No published file has a tenth of these: entries of metadata, tensors, and arrays, each of which
#: takes some steps of Python to read; and values of an array, such as tokens.
MAX_ENTRIES = 2**16
MAX_VALUES = 2**24
#: Arrays up to this length are decoded immediately: hyper-parameters, not vocabularies.
SMALL_ARRAY = 1024


class HeaderBytes:
    """The first bytes of a GGUF file.

    `data` are the bytes that have been fetched. `reserved_bytes` is the minimum size of the header
    behind the current value, by the remaining counts of metadata and tensors.
    """

    def __init__(self, reader: ByteReader, file: str) -> None:
        self.reader = reader
        self.file = file
        self.data = bytearray()
        self.reserved_bytes = 0

    def need(self, end: int, promised_end: int | None = None) -> None:
        """Fetch up to `end`, or to the known minimum size of the header."""
        least_end = max(end, promised_end or end) + self.reserved_bytes
        if least_end > self.reader.size_bytes:
            raise NotReadable(
                f"truncated or corrupt: a header of at least {least_end} bytes in a file of "
                f"{self.reader.size_bytes}",
                where=self.file,
                hint=AGAIN,
            )
        have = len(self.data)
        if end > have:
            self.data += self.reader.read(have, least_end - have)


class GgufCodec:
    """Decodes values of one byte order and version; each method returns where the value ends.

    Version 1 has 32-bit lengths and counts, later versions 64-bit ones.
    """

    def __init__(self, header: HeaderBytes, order: ByteOrder, version: int) -> None:
        prefix = "<" if order == "little" else ">"
        self.header = header
        self.structs = {number: Struct(prefix + code) for number, code in SCALARS.items()}
        self.length = self.structs[4] if version == 1 else self.structs[10]
        self.uint32 = self.structs[4]
        self.prefix = prefix
        self._num_arrays = 0

    def check_count(self, count: int, what: str, most: int = MAX_ENTRIES) -> None:
        """Raises NotReadable for more than any model has, before they are read."""
        if count > most:
            raise NotReadable(f"{count} {what}, of at most {most}", where=self.header.file)

    def integer(self, position: int, struct: Struct) -> tuple[int, int]:
        end = position + struct.size
        self.header.need(end)
        return int(struct.unpack_from(self.header.data, position)[0]), end

    def string(self, position: int) -> tuple[str, int]:
        length, start = self.integer(position, self.length)
        self.header.need(start + length)
        return self.text(start, start + length), start + length

    def text(self, start: int, end: int) -> str:
        try:
            return self.header.data[start:end].decode()
        except UnicodeDecodeError as error:
            raise NotReadable(
                "contains a string that is not UTF-8", where=self.header.file
            ) from error

    def value(self, position: int, kind: int, depth: int = 0) -> tuple[Any, int]:
        """A value of type `kind`; long and nested arrays come as LazyArray."""
        if kind == STRING:
            return self.string(position)
        if kind == ARRAY:
            array, end = self.array(position, depth)
            small = len(array) <= SMALL_ARRAY and array.kind != ARRAY
            return (array.tolist() if small else array), end
        struct = self.structs.get(kind)
        if struct is None:
            raise NotReadable(f"unknown value type {kind}", where=self.header.file)
        end = position + struct.size
        self.header.need(end)
        return struct.unpack_from(self.header.data, position)[0], end

    def array(self, position: int, depth: int) -> tuple[LazyArray, int]:
        if depth >= MAX_DEPTH:
            raise NotReadable(f"arrays nested more than {MAX_DEPTH} deep", where=self.header.file)
        kind, position = self.integer(position, self.uint32)
        count, start = self.integer(position, self.length)
        self.header.need(start, start + count)  # a count beyond the file is damage
        self.check_count(count, "values of an array", MAX_VALUES)
        self._num_arrays += 1
        self.check_count(self._num_arrays, "arrays")
        if kind == STRING:
            end = self._skip_strings(start, count)
        elif kind == ARRAY:
            end = self._skip_arrays(start, count, depth)
        elif kind in self.structs:
            end = start + count * self.structs[kind].size
            self.header.need(end)
        else:
            raise NotReadable(f"unknown value type {kind}", where=self.header.file)
        return LazyArray(self, kind, count, start, depth), end

    def _skip_strings(self, position: int, count: int) -> int:
        """The end of `count` strings from `position`. The hot loop of opening a file."""
        unpack, width = self.length.unpack_from, self.length.size
        data, left = self.header.data, count
        while left:
            self.header.need(position + width, position + width * left)
            try:
                for done in range(left):  # noqa: B007 - read where it stopped
                    position += width + unpack(data, position)[0]
            except (StructError, OverflowError):  # the fetched bytes end here
                left -= done
            else:
                left = 0
        self.header.need(position)
        return position

    def _skip_arrays(self, position: int, count: int, depth: int) -> int:
        self.header.need(position, position + count * (self.uint32.size + self.length.size))
        for _ in range(count):
            position = self.array(position, depth + 1)[1]
        return position

    def items(self, array: LazyArray) -> list[Any]:
        """All values of an array."""
        if array.kind == STRING:
            return self._strings(array.start, array.length)
        if array.kind == ARRAY:
            return self._arrays(array)
        many = Struct(f"{self.prefix}{array.length}{SCALARS[array.kind]}")
        return list(many.unpack_from(self.header.data, array.start))

    def _strings(self, position: int, count: int) -> list[str]:
        unpack, width = self.length.unpack_from, self.length.size
        data = self.header.data
        strings = []
        try:
            for _ in range(count):
                start = position + width
                position = start + unpack(data, position)[0]
                strings.append(data[start:position].decode())
        except UnicodeDecodeError as error:
            raise NotReadable(
                "contains a string that is not UTF-8", where=self.header.file
            ) from error
        return strings

    def _arrays(self, array: LazyArray) -> list[Any]:
        position, arrays = array.start, []
        for _ in range(array.length):
            value, position = self.value(position, ARRAY, array.depth + 1)
            arrays.append(value)
        return arrays


class LazyArray(Sequence[Any]):
    """An array in a GGUF header, decoded on first access."""

    def __init__(self, codec: GgufCodec, kind: int, length: int, start: int, depth: int) -> None:
        self.codec = codec
        self.kind = kind
        self.length = length
        self.start = start
        self.depth = depth
        self._items: list[Any] | None = None

    def tolist(self) -> list[Any]:
        """The values as a list; nested arrays become lists too."""
        if self._items is None:
            items = self.codec.items(self)
            self._items = [v.tolist() if isinstance(v, LazyArray) else v for v in items]
        return self._items

    def __len__(self) -> int:
        return self.length

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        return self.tolist()[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.tolist())

    def __repr__(self) -> str:
        return f"<array of {self.length} values>"
