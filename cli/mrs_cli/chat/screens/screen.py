"""What a chat needs of a screen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from mrs.errors import MrsError
from mrs.events import Event
from mrs_cli.render.reply_events import CompleteReply


class Screen(Protocol):
    """Where prompts come from and replies go."""

    @property
    def attended(self) -> bool:
        """Whether a person is there, who can continue after an error or a stopped reply."""
        ...

    @property
    def edits(self) -> bool:
        """Whether `read` can offer a draft to edit."""
        ...

    def greet(self, summary: str) -> None: ...

    def read(self, draft: str = "") -> str | None:
        """The next message or command; None at the end of the input.

        Ctrl-C deletes the line, which gives an empty text; on an empty line it raises
        KeyboardInterrupt. A text that opens triple quotes is read to the closing ones.
        """
        ...

    def ask(self, question: str) -> str:
        """What the person answers, in lower case; nothing for Ctrl-C or without a person."""
        ...

    def confirm(self, question: str) -> bool:
        """Whether the person agrees."""
        ...

    def echo(self, text: str) -> None:
        """Shows a message that was not typed here."""
        ...

    def show(self, events: Iterator[Event]) -> CompleteReply:
        """Shows a reply while it arrives."""
        ...

    def statistics(self, reply: CompleteReply) -> None: ...
    def note(self, text: str) -> None:
        """Shows a text that is not a reply."""
        ...

    def error(self, error: MrsError) -> None: ...
