"""Prompts from a pipe; replies to several of them are computed at the same time."""

from __future__ import annotations

import codecs
import io
import os
import select
from collections import deque
from collections.abc import Iterator
from typing import TextIO

from mrs.errors import MrsError
from mrs.events import Event
from mrs.process.encodings import first_text
from mrs_cli.chat.question import Question
from mrs_cli.chat.session import Session

_READ_BYTES = 1 << 16

#: A prompt, and its reply if that has been started.
StartedPrompt = tuple[Question, Iterator[Event] | None]


class PipedLines:
    """The lines of a pipe or a file, which can be read without waiting.

    So a writer that waits for each reply before the next prompt gets it. A stream without a file
    number, such as a test's, is read at once.
    """

    def __init__(self, stream: TextIO) -> None:
        self._lines: deque[str] = deque()
        self._rest = ""
        self._stream = stream  # keeps the file open
        self._file = _file_number(stream)
        self._ended = self._file is None
        self._has_begun = False
        if self._file is None:
            self._lines.extend(self._checked(line) for line in stream)
        encoding = getattr(stream, "encoding", None) or "utf-8"
        decoder = codecs.getincrementaldecoder(encoding)("replace")
        self._decoder = io.IncrementalNewlineDecoder(decoder, translate=True)

    def read(self, *, wait: bool) -> str | None:
        """The next line; None at the end, or without `wait` if no line has arrived yet."""
        while not self._lines and not self._ended and (wait or self._is_ready()):
            self._fill()
        return self._lines.popleft().rstrip("\r\n") if self._lines else None

    def _is_ready(self) -> bool:
        try:
            return self._file is not None and bool(select.select([self._file], [], [], 0)[0])
        except (OSError, ValueError):  # on Windows select knows only sockets
            return False

    def _checked(self, text: str) -> str:
        """The next text, without the signature of UTF-8 if it is the first."""
        if self._has_begun or not text:
            return text
        self._has_begun = True
        return first_text(text, "standard input")

    def _fill(self) -> None:
        assert self._file is not None
        data = os.read(self._file, _READ_BYTES)
        self._ended = not data
        text = self._rest + self._checked(self._decoder.decode(data, final=self._ended))
        *lines, self._rest = text.split("\n")
        self._lines.extend(lines)
        if self._ended and self._rest:
            self._lines.append(self._rest)


def _file_number(stream: TextIO) -> int | None:
    try:
        return stream.fileno()
    except (OSError, ValueError, AttributeError):
        return None


def started_ahead(session: Session, lines: PipedLines, max_started: int) -> Iterator[StartedPrompt]:
    """The prompts in order; up to `max_started` of those that have arrived are started.

    A prompt that cannot be started raises its error when it is asked.
    """
    ahead: deque[StartedPrompt] = deque()
    while True:
        while len(ahead) < max_started:
            line = lines.read(wait=not ahead)
            if line is None:
                break
            if line.strip():
                ahead.append(_started(session, Question(line, is_typed=True)))
        if not ahead:
            return
        yield ahead.popleft()


def _started(session: Session, prompt: Question) -> StartedPrompt:
    try:
        prompt = session.attach(prompt)
        return prompt, session.start(prompt)
    except MrsError:
        return prompt, None
