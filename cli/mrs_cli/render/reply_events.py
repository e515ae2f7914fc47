"""The events of a reply, received while its text is shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from mrs.events import Event, Finished, FinishReason, ReplyUsage, TextDelta


@dataclass(frozen=True)
class CompleteReply:
    """A reply that has ended; `usage` is None if it was stopped before the model counted."""

    text: str
    reason: FinishReason
    usage: ReplyUsage | None


def receive(events: Iterator[Event], show_text: Callable[[str], None]) -> CompleteReply:
    """The whole reply; `show_text` gets its text as it arrives.

    Ctrl-C stops the reply and keeps the text so far.
    """
    texts: list[str] = []
    try:
        for event in events:
            if isinstance(event, TextDelta):
                texts.append(event.text)
                show_text(event.text)
            elif isinstance(event, Finished):
                return CompleteReply("".join(texts), event.reason, event.usage)
    except KeyboardInterrupt:
        _close(events)
    return CompleteReply("".join(texts), "cancelled", None)


def _close(events: Iterator[Event]) -> None:
    close = getattr(events, "close", None)
    if close is not None:
        close()
