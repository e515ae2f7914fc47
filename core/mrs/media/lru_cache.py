"""A cache that is bounded by bytes and evicts the least recently used entries."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class LruCache(Generic[Key, Value]):
    """At most `max_bytes` of values, which may change; safe for several threads."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._used_bytes = 0
        self._values: OrderedDict[Key, tuple[Value, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Key) -> Value | None:
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key][0]

    def put(self, key: Key, value: Value, *, size_bytes: int) -> None:
        with self._lock:
            self._used_bytes += size_bytes - self._values.pop(key, (value, 0))[1]
            self._values[key] = value, size_bytes
            while self._used_bytes > self.max_bytes:
                self._used_bytes -= self._values.popitem(last=False)[1][1]
