"""What a chat needs of the place where it happens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from mrs.errors import MrsError
from mrs.events import Event
from mrs_cli.session import Reply


class Screen(Protocol):
    """Where prompts come from and replies go."""

    @property
    def attended(self) -> bool:
        """Whether a person is there to go on after an error or a stopped reply."""
        ...

    def greet(self, summary: str) -> None: ...

    def read(self) -> str | None:
        """The next message or command; None when there is no more."""
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
