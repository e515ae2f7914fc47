"""What compiling a grammar may take, by llguidance's own measures, and the stack that it needs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from mrs.errors import UsageError

if TYPE_CHECKING:
    import llguidance

T = TypeVar("T")

#: At most about 0.3 s to compile most grammars, and 5 ms of a step, in which other replies wait.
#: (Its defaults are 1,000,000 and 200,000.)
_COMPILING, _STEP = 300_000, 50_000
#: llguidance recurses; a nested grammar overflows the stack that threads usually have.
_STACK_BYTES = 64 * 2**20
#: Held while the depth of new stacks, a setting of the whole process, is another.
_stack_lock = threading.Lock()


def parser_limits() -> llguidance.LLParserLimits:
    import llguidance

    return llguidance.LLParserLimits(
        initial_lexer_fuel=_COMPILING, step_lexer_fuel=_STEP, verbose_errors=False
    )


def with_deep_stack(compute: Callable[[], T]) -> T:
    """The result of `compute`, called in a thread with a deep stack."""
    results: list[T] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            results.append(compute())
        except Exception as error:  # noqa: BLE001 - raised below
            errors.append(error)

    thread = threading.Thread(target=run, name="mrs-grammar", daemon=True)
    with _stack_lock:
        before = threading.stack_size(_STACK_BYTES)
        try:
            thread.start()
        except RuntimeError as error:
            raise UsageError("no memory to compile a grammar", hint="raise the limit") from error
        finally:
            threading.stack_size(before)
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
