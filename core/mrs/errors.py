"""Errors for people, each one line with a hint, and the exit codes of the process."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Any


class ExitCode(IntEnum):
    """Exit codes of the process."""

    DONE = 0
    INTERNAL = 1
    USAGE = 2
    NOT_READABLE = 3
    DOES_NOT_FIT = 4
    UNSUPPORTED = 5
    PEER_FAILED = 6
    INTERRUPTED = 130


#: What begins a line, or moves or colours the text of a terminal.
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def shortened(text: str, most_characters: int = 400) -> str:
    """`text` on one line and valid as UTF-8; a long text is cut in the middle."""
    if len(text) > most_characters:
        text = f"{text[: most_characters // 2]}\u2026{text[-(most_characters // 2) :]}"
    line = text if _CONTROLS.search(text) is None else " ".join(_CONTROLS.sub(" ", text).split())
    return line.encode("utf-8", "replace").decode()


def described(value: object) -> str:
    """A value from a file for a message. Lists and mappings, which may be nested deeply, are only
    named."""
    is_plain = value is None or isinstance(value, str | int | float)
    return repr(value) if is_plain else f"a {type(value).__name__}"


def is_out_of_memory(error: Exception) -> bool:
    """Whether memory is missing, by type or by texts of Python, torch and the dynamic loader."""
    return isinstance(error, MemoryError) or any(
        part in str(error).lower()
        for part in (
            "failed to map segment",
            "cannot allocate memory",
            "can't allocate memory",
            "can't start new thread",
        )
    )


class MrsError(Exception):
    """An error message for a person: what happened, where, and a hint what to try.

    `str(error)` is one line, `what (where): hint`; absent parts are left out. Every part is
    shortened, since names and values in it may come from a file or a server.
    """

    exit_code = ExitCode.INTERNAL
    #: What of a request it is about, as `about` says; empty for the request itself.
    subject = ""

    def __init__(self, what: str, *, where: str = "", hint: str = "") -> None:
        self.what, self.where, self.hint = map(shortened, (what, where, hint))
        text = f"{self.what} ({self.where})" if where else self.what
        super().__init__(f"{text}: {self.hint}" if hint else text)

    def __reduce__(self) -> tuple[Any, ...]:
        # Restored from its text and attributes: the arguments of subclasses are other ones.
        return Exception.__new__, (type(self), *self.args), self.__dict__


@contextmanager
def about(subject: str) -> Iterator[None]:
    """Errors within have this subject."""
    try:
        yield
    except MrsError as error:
        error.subject = subject
        raise


class UsageError(MrsError):
    """The command line or a request has an invalid or contradictory value."""

    exit_code = ExitCode.USAGE


class ContextFull(UsageError):
    """The prompt has `prompt_tokens`; the `holder` (model or KV cache) only `context_tokens`.

    A prompt that is not `is_counted` to its end has more. One that `can_be_cut` would be read if it
    were to be shortened.
    """

    can_be_cut = True

    def __init__(
        self,
        prompt_tokens: int,
        context_tokens: int,
        holder: str = "model's context",
        hint: str = "shorten the prompt or clear the conversation",
        *,
        is_counted: bool = True,
    ) -> None:
        count = prompt_tokens if is_counted else f"more than {prompt_tokens}"
        super().__init__(
            f"the prompt has {count} tokens and the {holder} holds {context_tokens}", hint=hint
        )


class TextTooLong(ContextFull):
    """A text has more than `most_bytes`, and is not read for a context of `context_tokens`."""

    def __init__(
        self, num_bytes: int, most_bytes: int, context_tokens: int, *, can_be_cut: bool
    ) -> None:
        UsageError.__init__(
            self,
            f"the prompt has {num_bytes} bytes of text, and at most {most_bytes} are read for the "
            f"model's context of {context_tokens} tokens",
            hint="shorten the prompt or clear the conversation",
        )
        self.can_be_cut = can_be_cut


class NotReadable(MrsError):
    """A model, or a file of it, is missing, truncated or malformed."""

    exit_code = ExitCode.NOT_READABLE


class DoesNotFit(MrsError):
    """The devices have `missing_bytes` too little memory."""

    exit_code = ExitCode.DOES_NOT_FIT

    def __init__(self, what: str, *, missing_bytes: int, where: str = "", hint: str = "") -> None:
        super().__init__(what, where=where, hint=hint)
        self.missing_bytes = missing_bytes


class NoRoom(MrsError):
    """All memory for `what` is in use; it will be free again."""

    exit_code = ExitCode.DOES_NOT_FIT

    def __init__(self, what: str) -> None:
        super().__init__(f"all memory for {what} is in use", hint="try again later")


class Unsupported(MrsError):
    """A model, format or feature was recognized but is not supported."""

    exit_code = ExitCode.UNSUPPORTED


class BadIndex(MrsError):
    """A step names a `value` that is not among the `count` there are; nothing was computed."""

    def __init__(self, name: str, value: int, count: int, *, where: str = "") -> None:
        super().__init__(f"a step names {name} {value} of {count}", where=where)
