"""Importance matrices in their three forms, and damaged ones."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from mrs.errors import MrsError
from mrs.source.importance_file import read_importance

VALUES = {
    "blk.0.attn_q.weight": np.array([1, 2, 3, 4], np.float32),
    "blk.0.ffn_down_exps.weight": np.arange(8, dtype=np.float32),
}


def legacy() -> bytes:
    data = struct.pack("<i", len(VALUES))
    for name, values in VALUES.items():
        data += struct.pack(f"<i{len(name)}sii", len(name), name.encode(), 3, len(values))
        data += values.tobytes()
    return data + struct.pack("<ii4s", 7, 4, b"text")


def cimatrix() -> bytes:
    data = struct.pack("<Q", len(VALUES))
    for name, values in VALUES.items():
        data += struct.pack(f"<Q{len(name)}sQ", len(name), name.encode(), len(values))
        data += values.tobytes()
    return data


def write_gguf(path: Path) -> None:
    """The sums of squares of three calls, or of 1 and 5 calls of two experts, one never called."""
    writer = gguf.GGUFWriter(path, "imatrix")
    writer.add_type("imatrix")
    writer.add_uint32("imatrix.chunk_count", 3)
    sums = {"blk.0.attn_q.weight": (3,), "blk.0.ffn_down_exps.weight": (1, 5)}
    for name, counts in sums.items():
        calls = np.array(counts, np.float32)[:, None]
        writer.add_tensor(name + ".in_sum2", VALUES[name].reshape(len(counts), -1) * calls)
        writer.add_tensor(name + ".counts", calls)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "importance"


@pytest.mark.parametrize("form", ["legacy", "legacy without its end", "cimatrix", "gguf"])
def test_every_form_has_the_same_values(form: str, file: Path) -> None:
    if form == "gguf":
        write_gguf(file)
    else:
        data = cimatrix() if form == "cimatrix" else legacy()
        file.write_bytes(data[:-12] if form.endswith("end") else data)
    found = read_importance(str(file))
    assert found.keys() == VALUES.keys()
    for name, values in VALUES.items():
        np.testing.assert_allclose(found[name], values)


def test_empty_tensors(file: Path) -> None:
    writer = gguf.GGUFWriter(file, "imatrix")
    for name in ("in_sum2", "counts"):
        writer.add_tensor(f"a.{name}", np.zeros((0, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(MrsError, match="empty"):
        read_importance(str(file))


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: b"", "truncated"),
        (lambda: b"\0" * 4, "no entries"),
        (lambda: legacy()[:40], "truncated"),
        (lambda: cimatrix()[:-1], "truncated"),
        (lambda: struct.pack("<ii", 1, -5), "truncated"),
        (lambda: struct.pack("<ii4sii", 1, 4, b"name", 1, -1), "truncated"),
        (lambda: struct.pack("<ii4sii", 1, 4, b"name", 1, 2**31 - 1), "truncated"),
        (lambda: struct.pack("<QQ", 2**31, 2**63), "truncated"),
        (lambda: struct.pack("<Qq", 0, 4), "no entries"),
        (lambda: struct.pack("<QQBQ", 1, 0, 1, 0), "names no tensors"),
        (lambda: b"GGUF" + b"\3\0\0\0" + bytes(16), "no entries"),
        (lambda: b"GGUF" + b"\3\0\0\0", "truncated"),
        (lambda: b"hello, this is a text and no importance matrix", "truncated"),
    ],
)
def test_damaged_files(make: Callable[[], bytes], expected: str, file: Path) -> None:
    file.write_bytes(make())
    with pytest.raises(MrsError, match=expected) as raised:
        read_importance(str(file))
    assert "\n" not in str(raised.value)
    assert str(file) in str(raised.value)
