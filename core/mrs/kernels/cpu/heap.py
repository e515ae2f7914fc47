"""Settings of the C library's heap, and a limit for what it keeps. All of it for glibc."""

from __future__ import annotations

import contextlib
import ctypes
import sys
import time
from collections.abc import Iterator

from mrs.devices.host_memory import resident_bytes

#: glibc's codes for options of its heap: how much free memory at the heap's end it keeps before it
#: returns it to the system; the size from which on allocations are mapped one by one (32 MiB at
#: most); the number of heaps that threads are spread over.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8


def use_one_heap() -> None:
    """Let threads that start from now on allocate from the main heap, if the C library is glibc.

    Only the main heap keeps freed memory. The heaps of other threads shrink when a large block is
    freed, so that a thread would have the pages of its activations cleared again at every step.
    """
    _set_heap((_ARENA_MAX, 1))


def keep_freed_memory() -> None:
    """Let the heap keep freed blocks of up to 32 MiB, if the C library is glibc.

    A prompt allocates and frees its activations layer by layer. If each block were returned to the
    system, its pages would have to be cleared every time: an eighth of a prompt's time, as
    measured. The heap keeps no more than was in use at once, which the plan counts.
    """
    _set_heap((_MMAP_THRESHOLD, 32 << 20), (_TRIM_THRESHOLD, 128 << 20))


@contextlib.contextmanager
def freed_memory_returned() -> Iterator[None]:
    """Return every large block to the system when it is freed, if the C library is glibc.

    Otherwise freed blocks of many sizes, between small ones that stay allocated, fragment the
    heap: loading and quantizing a model would need up to twice the model's memory.
    """
    _set_heap((_MMAP_THRESHOLD, 256 << 10), (_TRIM_THRESHOLD, 256 << 10))
    try:
        yield
    finally:
        trim_heap()


def _set_heap(*options: tuple[int, int]) -> None:
    """Set glibc's heap options, pairs of a code and a value; no effect on other C libraries."""
    if not sys.platform.startswith("linux"):
        return
    with contextlib.suppress(AttributeError):
        set_option = ctypes.CDLL(None).mallopt
        for option, value in options:
            set_option(option, value)


def trim_heap() -> None:
    """Return free pages of the heap to the system, if the C library is glibc."""
    if sys.platform.startswith("linux"):
        with contextlib.suppress(AttributeError):
            ctypes.CDLL(None).malloc_trim(0)


class HeapLimit:
    """Returns freed memory to the system when the process has more than `limit_bytes`.

    Threads allocate in an order that changes from step to step, and blocks that stay allocated lie
    between the freed ones. So the gaps grow with the prompts: to 136 MiB after 4,096 tokens of a
    model of 1.1 billion parameters, where the activations need 30.
    """

    #: Seconds between checks, which take 50 microseconds, and what memory may grow in between.
    INTERVAL_S, STEP_BYTES = 0.25, 16 << 20

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._checked_s = 0.0

    def check(self) -> None:
        """Call this after a step of the engine."""
        now_s = time.monotonic()
        if now_s - self._checked_s < self.INTERVAL_S:
            return
        self._checked_s = now_s
        if resident_bytes() <= self._limit_bytes:
            return
        trim_heap()
        # What is in use cannot be returned: a prefix cache, or memory of the program around.
        self._limit_bytes = max(self._limit_bytes, resident_bytes() + self.STEP_BYTES)
