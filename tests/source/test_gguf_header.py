"""The GGUF header reader against gguf-py, against hand-made older versions, and against damage."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_reader import MemoryReader

from mrs.errors import NotReadable, Unsupported
from mrs.formats import GGML_FORMATS
from mrs.source.gguf_header import GgufHeader, read_gguf_header
from mrs.source.gguf_values import LazyArray
from mrs.source.reader import LocalFile


def read(data: bytes) -> GgufHeader:
    return read_gguf_header(MemoryReader(data), "m.gguf")


def write(
    path: Path, fill: Callable[[gguf.GGUFWriter], None], endianess: gguf.GGUFEndian
) -> GgufHeader:
    writer = gguf.GGUFWriter(path, "llama", endianess=endianess)
    fill(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return read_gguf_header(LocalFile(path), path.name)


SCALARS = {
    "uint8": 200,
    "int8": -5,
    "uint16": 60_000,
    "int16": -300,
    "uint32": 4_000_000_000,
    "int32": -70_000,
    "float32": 0.5,
    "bool": True,
    "string": "Größe ▁",
    "uint64": 2**63 + 1,
    "int64": -(2**40),
    "float64": 0.1,
}
ARRAYS = {
    "numbers": [1, -2, 3],
    "floats": [0.5, -1.5],
    "strings": ["a", "", "ĠΩ"],
    "flags": [True, False],
    "nested": [["x", "yy"], ["z"]],
    "nested numbers": [[1, 2], [3], [4, 5, 6]],
    "long": [f"token {i}" for i in range(3000)],
    "long numbers": list(range(2000)),
}


def fill_values(writer: gguf.GGUFWriter) -> None:
    for kind, value in SCALARS.items():
        getattr(writer, f"add_{kind}")(f"scalar.{kind}", value)
    for name, values in ARRAYS.items():
        writer.add_array(f"array.{name}", values)
    writer.add_tensor("x", np.zeros((2, 3), np.float32))


@pytest.mark.parametrize("endianess", list(gguf.GGUFEndian))
def test_every_value_type(tmp_path: Path, endianess: gguf.GGUFEndian) -> None:
    header = write(tmp_path / "values.gguf", fill_values, endianess)
    assert header.version == 3
    assert header.byte_order == endianess.name.lower()
    assert header.metadata["general.architecture"] == "llama"
    for kind, value in SCALARS.items():
        found = header.metadata[f"scalar.{kind}"]
        assert found == value
        assert type(found) is type(value)
    for name, values in ARRAYS.items():
        assert len(header.metadata[f"array.{name}"]) == len(values)
        assert list(header.metadata[f"array.{name}"]) == values
    assert header.tensors[0].shape == (2, 3)


def test_long_arrays_are_decoded_on_demand(tmp_path: Path) -> None:
    header = write(tmp_path / "values.gguf", fill_values, gguf.GGUFEndian.LITTLE)
    assert isinstance(header.metadata["array.numbers"], list)
    long = header.metadata["array.long"]
    assert isinstance(long, LazyArray)
    assert repr(long) == "<array of 3000 values>"
    assert long[2999] == "token 2999"
    assert long[1:3] == ["token 1", "token 2"]
    assert "token 7" in long


@pytest.mark.parametrize("endianess", list(gguf.GGUFEndian))
def test_tensors_of_every_type(tmp_path: Path, endianess: gguf.GGUFEndian) -> None:
    """Shapes, sizes and positions are those that gguf-py's reader finds."""

    def fill(writer: gguf.GGUFWriter) -> None:
        writer.add_custom_alignment(64)
        for number, (elements, size) in gguf.GGML_QUANT_SIZES.items():
            raw = np.zeros((2, 3, 512 // elements * size), np.uint8)
            writer.add_tensor(f"t.{number.name}", raw, raw_dtype=number)
        writer.add_tensor("vector", np.zeros(5, np.float16))

    header = write(tmp_path / "types.gguf", fill, endianess)
    reference = gguf.GGUFReader(tmp_path / "types.gguf")
    assert header.alignment == reference.alignment == 64
    assert header.data_offset == reference.data_offset
    assert len(header.tensors) == len(reference.tensors) == len(gguf.GGML_QUANT_SIZES) + 1
    for tensor, expected in zip(header.tensors, reference.tensors, strict=True):
        assert tensor.name == expected.name
        assert tensor.shape == tuple(int(size) for size in reversed(expected.shape))
        assert tensor.format is GGML_FORMATS[expected.tensor_type]
        assert tensor.size_bytes == expected.n_bytes
        assert tensor.offset_bytes == expected.data_offset


def text(value: str, length: str = "<Q") -> bytes:
    return struct.pack(length, len(value.encode())) + value.encode()


def make(
    values: bytes = b"",
    value_count: int = 0,
    tensors: bytes = b"",
    tensor_count: int = 0,
    version: int = 3,
    data_bytes: int = 0,
) -> bytes:
    head = b"GGUF" + struct.pack(
        "<I" + ("II" if version == 1 else "QQ"), version, tensor_count, value_count
    )
    header = head + values + tensors
    return header + bytes(-len(header) % 32) + bytes(data_bytes)


def tensor(name: str = "x", shape: tuple[int, ...] = (4,), kind: int = 0, offset: int = 0) -> bytes:
    sizes = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return text(name) + sizes + struct.pack("<IQ", kind, offset)


def value(key: str, kind: int, content: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + content


def test_version_1_has_32_bit_counts() -> None:
    """gguf-py no longer reads version 1: the layout follows the description of the format."""
    values = (
        text("name", "<I") + struct.pack("<I", 8) + text("old", "<I")
        + text("list", "<I") + struct.pack("<III", 9, 8, 2) + text("a", "<I") + text("bc", "<I")
    )  # fmt: skip
    infos = text("x", "<I") + struct.pack("<IIIIQ", 2, 8, 3, 1, 0)
    header = read(make(values, 2, infos, 1, version=1, data_bytes=48))
    assert header.version == 1
    assert header.metadata == {"name": "old", "list": ["a", "bc"]}
    assert header.tensors[0].shape == (3, 8)
    assert header.tensors[0].format.name == "F16"
    assert header.tensors[0].size_bytes == 48


def test_version_2_and_3_share_a_layout() -> None:
    for version in (2, 3):
        data = make(value("k", 4, b"\7\0\0\0"), 1, tensor(), 1, version, data_bytes=16)
        assert read(data).metadata == {"k": 7}
        assert read(data).version == version


def test_nothing_behind_the_header_is_asked_for(tmp_path: Path) -> None:
    """Every read ends within the header, though its length is written nowhere."""

    def fill(writer: gguf.GGUFWriter) -> None:
        writer.add_token_list([f"token{i}" for i in range(20_000)])
        writer.add_token_scores([0.0] * 20_000)
        writer.add_token_merges([f"a b{i}" for i in range(30_000)])
        for i in range(200):
            writer.add_tensor(f"blk.{i}.attn_q.weight", np.zeros((2, 64), np.float32))

    path = tmp_path / "big.gguf"
    expected = write(path, fill, gguf.GGUFEndian.LITTLE)
    memory = MemoryReader(path.read_bytes())
    header = read_gguf_header(memory, "big.gguf")
    assert header.tensors == tuple(expected.tensors)
    assert max(offset + length for offset, length in memory.asked) <= header.data_offset
    assert sum(length for _, length in memory.asked) <= header.data_offset
    assert len(memory.asked) < 50


BIG = struct.pack("<Q", 2**62)
DAMAGED = {
    "empty": (b"", "an empty file"),
    "other": (b"PK\3\4" + bytes(40), "not a GGUF file"),
    "magic only": (b"GGUF\3\0\0\0", "truncated: 8 bytes"),
    "counts cut": (make()[:20], "truncated"),
    "tensor count": (b"GGUF\3\0\0\0" + BIG + bytes(8), "truncated or corrupt"),
    "value count": (b"GGUF\3\0\0\0" + bytes(8) + BIG, "truncated or corrupt"),
    "key length": (make(BIG, 1), "truncated or corrupt"),
    "string length": (make(value("k", 8, BIG), 1), "truncated or corrupt"),
    "array length": (make(value("k", 9, struct.pack("<I", 4) + BIG), 1), "truncated or corrupt"),
    "strings": (make(value("k", 9, struct.pack("<I", 8) + BIG), 1), "truncated or corrupt"),
    "arrays": (make(value("k", 9, struct.pack("<I", 9) + BIG), 1), "truncated or corrupt"),
    "last string": (
        make(value("k", 9, struct.pack("<IQ", 8, 2) + text("a") + BIG), 1),
        "truncated or corrupt",
    ),
    "value type": (make(value("k", 13, bytes(8)), 1), "unknown value type 13"),
    "item type": (make(value("k", 9, struct.pack("<IQ", 13, 1) + bytes(8)), 1), "type 13"),
    "nesting": (make(value("k", 9, struct.pack("<IQ", 9, 1) * 40 + bytes(99)), 1), "nested"),
    "key twice": (make(value("k", 0, b"\1") * 2, 2), "metadata k occurs twice"),
    "key is no text": (make(struct.pack("<QBI", 1, 255, 0) + bytes(32), 1), "not UTF-8"),
    "alignment 0": (make(value("general.alignment", 4, bytes(4)), 1), "not a power of two"),
    "alignment 48": (make(value("general.alignment", 4, b"0\0\0\0"), 1), "not a power of two"),
    "alignment text": (make(value("general.alignment", 8, text("x")), 1), "not a power of two"),
    "dimensions": (make(tensors=tensor(shape=(1,) * 5), tensor_count=1), "5 dimensions"),
    "row cut": (make(tensors=tensor(shape=(33,), kind=8), tensor_count=1), "whole number of Q8_0"),
    "huge type": (make(tensors=tensor(kind=9999), tensor_count=1), "type 9999"),
    "huge shape": (make(tensors=tensor(shape=(2**63,) * 4), tensor_count=1), "truncated: "),
    "unaligned": (make(tensors=tensor(offset=4), tensor_count=1, data_bytes=32), "not aligned"),
    "data cut": (make(tensors=tensor(), tensor_count=1, data_bytes=15), "but the header needs"),
    "offset": (make(tensors=tensor(offset=2**40), tensor_count=1, data_bytes=16), "header needs"),
    "name twice": (make(tensors=tensor(shape=(0,)) * 2, tensor_count=2), "x occurs twice"),
    "many tensors": (make(tensor_count=2**17, data_bytes=2**18), "131072 tensors, of at most"),
    "many entries": (make(value_count=2**17, data_bytes=2**18), "131072 entries of metadata"),
    "many arrays": (
        make(value("k", 9, struct.pack("<IQ", 9, 70_000) + bytes(12) * 70_000), 1), "65537 arrays"
    ),
    "many values": (
        make(value("k", 9, struct.pack("<IQ", 0, 2**24 + 1) + bytes(2**24 + 1)), 1),
        "16777217 values of an array",
    ),
    "overlap": (
        make(tensors=tensor(shape=(16,)) + tensor("y", offset=32), tensor_count=2, data_bytes=64),
        "overlaps",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", DAMAGED)
def test_damage_is_named(case: str) -> None:
    data, message = DAMAGED[case]
    with pytest.raises(NotReadable, match=message) as caught:
        read(data)
    assert "m.gguf" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_strings_that_are_no_text_are_found_when_looked_at() -> None:
    bad = struct.pack("<IQ", 8, 2000) + struct.pack("<QB", 1, 255) * 2000
    header = read(make(value("k", 9, bad), 1))
    with pytest.raises(NotReadable, match="not UTF-8"):
        list(header.metadata["k"])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (make(version=4), "GGUF version 4"),
        (make(tensors=tensor(kind=4), tensor_count=1, data_bytes=64), "ggml type 4"),
        (make(tensors=tensor(kind=200), tensor_count=1, data_bytes=64), "ggml type 200"),
    ],
)
def test_what_is_retired_or_newer_is_unsupported(data: bytes, message: str) -> None:
    with pytest.raises(Unsupported, match=message):
        read(data)


@given(st.data())
@settings(max_examples=400, deadline=None)
def test_corruption_never_surprises(data: st.DataObject) -> None:
    """Changed bytes give a consistent header or a clear error, in memory bounded by the file."""
    values = [
        value("general.name", 8, text("tiny")),
        value("llama.rope", 6, struct.pack("<f", 1e4)),
        value("tokens", 9, struct.pack("<IQ", 8, 3) + text("a") + text("bb") + text("")),
        value("nested", 9, struct.pack("<IQ", 9, 1) + struct.pack("<IQ", 4, 2) + bytes(8)),
    ]
    infos = tensor("x", (4, 2)) + tensor("y", (32,), 8, 32)
    good = bytearray(make(b"".join(values), len(values), infos, 2, data_bytes=66))
    for _ in range(data.draw(st.integers(1, 4))):
        good[data.draw(st.integers(4, len(good) - 67))] = data.draw(st.integers(0, 255))
    cut = bytes(good[: data.draw(st.integers(0, len(good)))] if data.draw(st.booleans()) else good)
    tracemalloc.start()
    try:
        header = read(cut)
        for item in header.metadata.values():
            if isinstance(item, LazyArray):
                item.tolist()
    except (NotReadable, Unsupported):
        return
    finally:
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak_bytes < 500_000
    assert all(t.offset_bytes + t.size_bytes <= len(cut) for t in header.tensors)
