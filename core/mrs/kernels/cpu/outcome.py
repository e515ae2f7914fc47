"""What the native library's calls return, and the errors that it becomes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mrs.errors import BadIndex
from mrs.kernels.c_structs import Outcome

#: What the library's codes name, in the order of `Code` in native/bounds.h, after memory.
_NAMED = (
    "row",
    "position",
    "block",
    "slot",
    "first row",
    "length",
    "last position attended to",
    "rows",
    "chosen position",
    "slot of rests",
)
_NO_MEMORY = 1


def require_done(outcome: Outcome, function: Any, arguments: Sequence[object]) -> None:
    """An `errcheck` of ctypes. Raises MemoryError, and BadIndex; then nothing was computed."""
    code = outcome.code
    if not code:
        return
    if code == _NO_MEMORY:
        raise MemoryError(f"not enough memory for {_called(function)}")
    raise BadIndex(_NAMED[code - 2], outcome.value, outcome.count, where=_called(function))


def _called(function: Any) -> str:
    """`mrs_write_kv` as people say it: "the native write kv"."""
    name: str = function.__name__
    return f"the native {name.removeprefix('mrs_').replace('_', ' ')}"
