"""What a chat needs of the place where it happens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from mrs.errors import MrsError
from mrs.events import Event
from mrs_cli.chat.session import Reply


class Screen(Protocol):
    """Where prompts come from and replies go."""

    @property
    def attended(self) -> bool:
        """Whether a person is there to go on after an error or a stopped reply."""
        ...

    @property
    def edits(self) -> bool:
        """Whether a line can be filled in for the person to change."""
        ...

    def greet(self, summary: str) -> None: ...

    def read(self, draft: str = "") -> str | None:
        """The next message or command; None when there is no more.

        `draft` is filled in where the screen edits. Ctrl-C takes what stands there away, which
        gives an empty text; where nothing stands there, it raises KeyboardInterrupt. Lines that
        open three quotes are read up to those that close them.
        """
        ...

    def confirm(self, question: str) -> bool:
        """Whether the person who attends agrees."""
        ...

    def echo(self, text: str) -> None:
        """Shows a message that was not typed here."""
        ...

    def show(self, events: Iterator[Event]) -> Reply:
        """Shows a reply while it arrives."""
        ...

    def statistics(self, reply: Reply) -> None: ...
    def note(self, text: str) -> None:
        """Says something that is no reply."""
        ...

    def error(self, error: MrsError) -> None: ...
