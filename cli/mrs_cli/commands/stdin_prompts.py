"""Prompts that come through a pipe, some of them begun before their turn."""

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
from mrs_cli.chat.session import Question, Session

_READ_BYTES = 1 << 16

#: A prompt, and its reply if that was begun already.
Begun = tuple[Question, Iterator[Event] | None]


class PipedLines:
    """The lines of a pipe or a file, and whether there is one to be had without waiting.

    Whoever writes a prompt and waits for the reply before the next is never waited for. A stream
    that has no file, such as a test's, has all its lines at once.
    """

    def __init__(self, stream: TextIO) -> None:
        self._lines: deque[str] = deque()
        self._rest = ""
        self._stream = stream  # closed when nobody knows it any more
        self._file = _file_number(stream)
        self._ended = self._file is None
        if self._file is None:
            self._lines.extend(stream)
        encoding = getattr(stream, "encoding", None) or "utf-8"
        decoder = codecs.getincrementaldecoder(encoding)("replace")
        self._decoder = io.IncrementalNewlineDecoder(decoder, translate=True)

    def read(self, *, wait: bool) -> str | None:
        """The next line; None where there is none any more, or without `wait` none yet."""
        while not self._lines and not self._ended and (wait or self._is_ready()):
            self._fill()
        return self._lines.popleft().rstrip("\r\n") if self._lines else None

    def _is_ready(self) -> bool:
        try:
            return self._file is not None and bool(select.select([self._file], [], [], 0)[0])
        except (OSError, ValueError):  # Windows tells only of sockets
            return False

    def _fill(self) -> None:
        assert self._file is not None
        data = os.read(self._file, _READ_BYTES)
        self._ended = not data
        text = self._rest + self._decoder.decode(data, final=self._ended)
        *lines, self._rest = text.split("\n")
        self._lines.extend(lines)
        if self._ended and self._rest:
            self._lines.append(self._rest)


def _file_number(stream: TextIO) -> int | None:
    try:
        return stream.fileno()
    except (OSError, ValueError, AttributeError):
        return None


def begun_ahead(session: Session, lines: PipedLines, most: int) -> Iterator[Begun]:
    """The prompts in order, up to `most` of those that are there already begun.

    One that cannot be begun gives its error when it is its turn.
    """
    ahead: deque[Begun] = deque()
    while True:
        while len(ahead) < most:
            line = lines.read(wait=not ahead)
            if line is None:
                break
            if line.strip():
                ahead.append(_tried(session, Question(line)))
        if not ahead:
            return
        yield ahead.popleft()


def _tried(session: Session, prompt: Question) -> Begun:
    try:
        prompt = session.attach(prompt)
        return prompt, session.begin(prompt)
    except MrsError:
        return prompt, None
