"""The safetensors header reader against the safetensors library, and against damage."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import pytest
import safetensors
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_reader import MemoryReader
from safetensors.torch import save_file

from mrs.errors import NotReadable
from mrs.formats import FORMATS
from mrs.source.reader import LocalFile
from mrs.source.safetensors_header import DTYPES, SafetensorsHeader, read_safetensors_header

TORCH_DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.float8_e8m0fnu,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "I16": torch.int16,
    "U16": torch.uint16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I32": torch.int32,
    "U32": torch.uint32,
    "F32": torch.float32,
    "C64": torch.complex64,
    "F64": torch.float64,
    "I64": torch.int64,
    "U64": torch.uint64,
}


def pack(header: object, data_bytes: int = 0) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(data_bytes)


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def read(data: bytes) -> SafetensorsHeader:
    return read_safetensors_header(MemoryReader(data), "model.safetensors")


def test_every_dtype_of_the_library(tmp_path: Path) -> None:
    """Sizes, shapes, offsets and bytes are those that the library wrote."""
    generator = torch.Generator().manual_seed(1)
    tensors = {}
    for i, (name, dtype) in enumerate(TORCH_DTYPES.items()):
        shape = [(), (3,), (2, 5), (2, 3, 4), (0, 7)][i % 5]
        raw = torch.randint(0, 2, (*shape, dtype.itemsize), generator=generator, dtype=torch.uint8)
        tensors[f"t.{name}"] = raw.view(dtype).reshape(shape)
    path = tmp_path / "all.safetensors"
    save_file(tensors, path, metadata={"format": "pt"})
    header = read_safetensors_header(LocalFile(path), path.name)
    data = path.read_bytes()
    assert header.metadata == {"format": "pt"}
    assert {tensor.name for tensor in header.tensors} == set(tensors)
    for tensor in header.tensors:
        expected = tensors[tensor.name]
        assert tensor.shape == tuple(expected.shape)
        assert tensor.format is FORMATS[tensor.name.removeprefix("t.")]
        assert tensor.file == path.name
        raw = data[tensor.offset_bytes : tensor.offset_bytes + tensor.size_bytes]
        assert raw == expected.contiguous().view(-1).view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_sizes_are_those_the_library_accepts(dtype: str) -> None:
    """The library refuses a tensor whose bytes do not match its shape, so it is the judge."""
    size_bytes = FORMATS[dtype].size_bytes((2, 16))
    right = pack({"x": entry(dtype, [2, 16], 0, size_bytes)}, size_bytes)
    wrong = pack({"x": entry(dtype, [2, 16], 0, size_bytes + 1)}, size_bytes + 1)
    assert [name for name, _ in safetensors.deserialize(right)] == ["x"]
    assert read(right).tensors[0].size_bytes == size_bytes
    with pytest.raises(safetensors.SafetensorError):
        safetensors.deserialize(wrong)
    with pytest.raises(NotReadable, match="needs"):
        read(wrong)


def test_padding_and_unknown_keys_are_accepted() -> None:
    text = json.dumps({"x": GOOD | {"later": 1}}).encode() + b"   "
    assert [name for name, _ in safetensors.deserialize(pack(text, 8))] == ["x"]
    assert read(pack(text, 8)).tensors[0].shape == (2,)


def test_only_the_header_is_read(tmp_path: Path) -> None:
    data = pack({"x": entry("F32", [1000], 0, 4000)}, 4000)
    memory = MemoryReader(data)
    read_safetensors_header(memory, "m")
    assert max(offset + length for offset, length in memory.asked) == len(data) - 4000


GOOD = entry("F32", [2], 0, 8)
DAMAGED = {
    "empty": (b"", "an empty file"),
    "short": (b"\x01\0", "2 bytes"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "Git LFS"),
    "over the limit": (b"\xff" * 8, "limit of 100000000"),
    "100 MB and a byte": ((100_000_001).to_bytes(8, "little") + b"{", "limit"),
    "header cut": (pack({"x": GOOD})[:-5], "truncated: a header"),
    "data cut": (pack({"x": GOOD}, 7), "truncated: .* but the header needs"),
    "data over": (pack({"x": GOOD}, 9), "1 bytes after the last"),
    "no brace": (pack(b" {}"), "start with"),
    "list": (pack(b"[]"), "start with"),
    "not JSON": (pack(b"{x}"), "not valid JSON"),
    "utf-16": (pack('{"x":1}'.encode("utf-16")), "start with"),
    "not text": (pack(b'{"\xff":1}'), "not valid JSON"),
    "deep": (pack(b'{"x":' + b"[" * 200_000), "not valid JSON"),
    "name twice": (pack(b'{"x":1,"x":2}'), "twice"),
    "entry is no object": (pack({"x": 3}), "needs dtype"),
    "key missing": (pack({"x": {"dtype": "F32", "shape": []}}), "needs dtype"),
    "unknown dtype": (pack({"x": entry("F33", [2], 0, 8)}, 8), "unknown dtype 'F33'"),
    "ggml dtype": (pack({"x": entry("Q8_0", [32], 0, 34)}, 34), "unknown dtype 'Q8_0'"),
    "dtype is a list": (pack({"x": GOOD | {"dtype": []}}, 8), "unknown dtype"),
    "negative dimension": (pack({"x": entry("F32", [-2], 0, 8)}, 8), "shape"),
    "dimension is true": (pack({"x": entry("F32", [True], 0, 4)}, 4), "shape"),
    "dimension is 2.0": (
        pack(b'{"x":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}}', 8),
        "sh",
    ),
    "too many dimensions": (pack({"x": entry("F32", [1] * 33, 0, 4)}, 4), "shape"),
    "huge dimensions": (pack({"x": entry("F32", [2**62] * 32, 0, 8)}, 8), "has 8 bytes, but F32"),
    "offsets reversed": (pack({"x": entry("F32", [2], 8, 0)}, 8), "not a range"),
    "one offset": (pack({"x": GOOD | {"data_offsets": [0]}}, 8), "not a range"),
    "size": (pack({"x": entry("F32", [3], 0, 8)}, 8), "needs 12"),
    "hole": (pack({"x": GOOD, "y": entry("F32", [1], 12, 16)}, 16), "leaves a hole"),
    "overlap": (pack({"x": GOOD, "y": entry("F32", [2], 4, 12)}, 12), "overlaps"),
    "hole at the start": (pack({"x": entry("F32", [1], 4, 8)}, 8), "leaves a hole"),
    "metadata": (pack({"__metadata__": {"a": 1}}), "__metadata__"),
}
#: The format's description forbids the first; no tensor library has the second.
STRICTER = ("no brace", "too many dimensions")


@pytest.mark.parametrize("case", DAMAGED)
def test_damage_is_named(case: str) -> None:
    data, message = DAMAGED[case]
    with pytest.raises(NotReadable, match=message) as caught:
        read(data)
    assert "model.safetensors" in str(caught.value)
    assert "\n" not in str(caught.value)
    if case not in STRICTER:
        with pytest.raises(safetensors.SafetensorError):
            safetensors.deserialize(data)


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_corruption_never_surprises(data: st.DataObject) -> None:
    """Changed bytes give a header that is consistent, or NotReadable, in little memory."""
    tensors = {f"layers.{i}.w": entry("F32", [2, 3], 24 * i, 24 * i + 24) for i in range(3)}
    good = bytearray(pack(tensors, 72))
    for _ in range(data.draw(st.integers(1, 4))):
        good[data.draw(st.integers(0, len(good) - 73))] = data.draw(st.integers(0, 255))
    cut = bytes(good[: data.draw(st.integers(0, len(good)))] if data.draw(st.booleans()) else good)
    tracemalloc.start()
    try:
        header = read(cut)
    except NotReadable:
        return
    finally:
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak_bytes < 1_000_000
    assert sum(tensor.size_bytes for tensor in header.tensors) <= len(cut)
    assert all(tensor.offset_bytes + tensor.size_bytes <= len(cut) for tensor in header.tensors)
