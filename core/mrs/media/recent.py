"""What was used last, up to a number of bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class Recent(Generic[Key, Value]):
    """Forgets what was not used for longest when it holds more than `most_bytes`."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._held_bytes = 0
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
            self._held_bytes += size_bytes - self._values.pop(key, (value, 0))[1]
            self._values[key] = value, size_bytes
            while self._held_bytes > self._most_bytes:
                self._held_bytes -= self._values.popitem(last=False)[1][1]
