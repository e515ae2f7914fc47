"""Bytes in memory as a `ByteReader`."""

from __future__ import annotations


class MemoryReader:
    """Remembers what was asked for, and refuses what lies outside."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.size_bytes = len(data)
        self.asked: list[tuple[int, int]] = []

    def read(self, offset: int, length: int) -> bytes:
        assert 0 <= offset <= offset + length <= self.size_bytes
        self.asked.append((offset, length))
        return self.data[offset : offset + length]
