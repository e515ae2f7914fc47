"""Prompts from standard input; replies to several lines are computed at the same time."""

from __future__ import annotations

import codecs
import io
import json
import os
import select
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import TextIO

from mrs.errors import MrsError, UsageError
from mrs.events import Event
from mrs.process.encodings import first_text
from mrs_cli.chat.question import Question
from mrs_cli.chat.session import Session

_READ_BYTES = 1 << 16

#: Where a prompt wants what is piped in.
STDIN_MARK = "{stdin}"


@dataclass(frozen=True)
class StartedPrompt:
    """A prompt, and its reply if that has been started.

    `system` replaces the session's system prompt, `fields` go with the reply's JSON, and `error`
    says why the line is no prompt.
    """

    question: Question
    started: Iterator[Event] | None = None
    system: str | None = None
    fields: Mapping[str, object] = field(default_factory=dict)
    error: MrsError | None = None


class StdinForm(Enum):
    """What standard input is: one prompt as a whole, a prompt a line, or a JSON object a line."""

    WHOLE = auto()
    LINES = auto()
    JSON_LINES = auto()


def joined(prompt: str | None, piped: str) -> str:
    """A prompt with what was piped in: in the place of `{stdin}`, or after it; either may lack."""
    if prompt is None:
        return piped
    if STDIN_MARK in prompt:
        return prompt.replace(STDIN_MARK, piped)
    return f"{prompt}\n\n{piped}" if piped.strip() else prompt


def json_prompt(line: str, number: int) -> StartedPrompt:
    """The prompt of a line of `--jsonl`, whose id is given back. Raises UsageError."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"line {number} is not JSON", where=str(error)) from error
    hint = 'such as {"prompt": "Who are you?"}'
    if not isinstance(fields, dict) or not isinstance(fields.get("prompt"), str):
        raise UsageError(f"line {number} has no prompt", hint=hint)
    if unknown := sorted(fields.keys() - {"prompt", "system", "id"}):
        raise UsageError(f"line {number} has an unknown field {unknown[0]}", hint=hint)
    system = fields.get("system")
    if system is not None and not isinstance(system, str):
        raise UsageError(f"the system prompt of line {number} is not a text", hint=hint)
    given_back = {"id": fields["id"]} if "id" in fields else {}
    return StartedPrompt(Question(fields["prompt"]), system=system, fields=given_back)


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

    def read_all(self) -> str:
        """The whole text, without the ends of its last lines."""
        lines = iter(lambda: self.read(wait=True), None)
        return "\n".join(lines).rstrip("\n")

    def is_empty_for(self, seconds: float) -> bool:
        """Whether nothing arrives for so long, and more may come."""
        return not self._lines and not self._ended and not self._is_ready(seconds)

    def _is_ready(self, wait_s: float = 0.0) -> bool:
        try:
            return self._file is not None and bool(select.select([self._file], [], [], wait_s)[0])
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


def started_ahead(
    session: Session,
    lines: PipedLines,
    max_started: int,
    prompt_of: Callable[[str, int], StartedPrompt],
) -> Iterator[StartedPrompt]:
    """The prompts in order; up to `max_started` of those that have arrived are started.

    `prompt_of` makes a prompt of a line and its number. An error comes with its prompt: one that
    cannot be started raises it when it is asked.
    """
    ahead: deque[StartedPrompt] = deque()
    number, system = 0, session.system
    while True:
        while len(ahead) < max_started:
            line = lines.read(wait=not ahead)
            if line is None:
                break
            number += 1
            if line.strip():
                ahead.append(_started(session, line, number, prompt_of))
                session.system = system
        if not ahead:
            return
        yield ahead.popleft()


def _started(
    session: Session, line: str, number: int, prompt_of: Callable[[str, int], StartedPrompt]
) -> StartedPrompt:
    try:
        prompt = prompt_of(line, number)
    except MrsError as error:
        return StartedPrompt(Question(line), error=error)
    if prompt.system is not None:
        session.system = prompt.system
    try:
        question = session.attach(prompt.question)
        return replace(prompt, question=question, started=session.start(question))
    except MrsError:
        return prompt
