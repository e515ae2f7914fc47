"""A screen of plain text or JSON lines, for pipes, files and simple terminals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress

from mrs.errors import MrsError
from mrs.events import Event
from mrs.process.encodings import first_text
from mrs_cli.chat.multiline_text import is_open
from mrs_cli.environment import Environment
from mrs_cli.render.error_lines import show_error
from mrs_cli.render.reply_events import CompleteReply, receive
from mrs_cli.render.safe_text import json_text, printable
from mrs_cli.render.statistics import reply_object, statistics_line


class PlainScreen:
    """See `Screen`: prompts are lines of standard input; only replies go to standard output."""

    def __init__(self, environment: Environment, *, json: bool, quiet: bool) -> None:
        self._environment = environment
        self._json = json
        #: What goes with the JSON of a reply.
        self.reply_fields: Mapping[str, object] = {}
        self._has_begun = False
        self._quiet = quiet

    @property
    def attended(self) -> bool:
        return self._environment.stdin.isatty()

    @property
    def edits(self) -> bool:
        return False

    def greet(self, summary: str) -> None:
        """The summary was printed when the model was loaded."""

    def read(self, draft: str = "") -> str | None:
        text = self._prompted("> ")
        while text is not None and is_open(text) and (line := self._prompted(". ")) is not None:
            text += f"\n{line}"
        return text

    def _prompted(self, mark: str) -> str | None:
        if self.attended and not self._quiet:
            self._say(mark, end="")
        return self._line()

    def ask(self, question: str) -> str:
        if not self.attended:
            return ""
        self._say(f"{question} ", end="")
        try:
            return (self._line() or "").strip().lower()
        except KeyboardInterrupt:
            return ""

    def confirm(self, question: str) -> bool:
        return self.ask(f"{question} (y/n)") in ("y", "yes")

    def _line(self) -> str | None:
        try:
            line = self._environment.stdin.readline()
        except KeyboardInterrupt:
            if self.attended:
                self._say("")
            raise
        if line and not self._has_begun:
            line, self._has_begun = first_text(line, "standard input"), True
        return line.rstrip("\r\n") if line else None

    def echo(self, text: str) -> None:
        """Prompts are not shown."""

    def show(self, events: Iterator[Event]) -> CompleteReply:
        if self._json:
            reply = receive(events, lambda _: None)
            if reply.reason == "tool_calls":  # the reply itself follows
                return reply
            self._write(json_text({**self.reply_fields, **reply_object(reply)}) + "\n")
            return reply
        ending = "\n"
        has_shown = False

        def write(text: str) -> None:
            nonlocal ending, has_shown
            if safe := printable(text):
                has_shown = True
                self._write(safe)
                ending = "" if safe.endswith("\n") else "\n"

        reply = receive(events, write)
        if has_shown or reply.reason != "tool_calls":
            self._write(ending)
        return reply

    def statistics(self, reply: CompleteReply) -> None:
        if not self._quiet:
            self._say(statistics_line(reply, self._environment.columns(self._environment.stderr)))

    def note(self, text: str) -> None:
        if not self._quiet:
            self._say(text)

    def error(self, error: MrsError) -> None:
        show_error(self._environment, error)

    def _write(self, text: str) -> None:
        self._environment.stdout.write(text)
        self._environment.stdout.flush()

    def _say(self, text: str, end: str = "\n") -> None:
        with suppress(OSError):
            self._environment.stderr.write(printable(text) + end)
            self._environment.stderr.flush()
