"""The events of a reply, received while its text is shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from mrs.events import Event, Finished, FinishReason, ReplyUsage, TextDelta, ToolCallDelta
from mrs.request import ToolCallMessage


@dataclass(frozen=True)
class CompleteReply:
    """A reply that has ended; `usage` is None if it was stopped before the model counted.

    One with the reason `tool_calls` waits for the results of `calls`; in others, the last call is
    cut off.
    """

    text: str
    reason: FinishReason
    usage: ReplyUsage | None
    calls: tuple[ToolCallMessage, ...] = ()


def receive(events: Iterator[Event], show_text: Callable[[str], None]) -> CompleteReply:
    """The whole reply; `show_text` gets its text as it arrives.

    Ctrl-C stops the reply and keeps the text so far.
    """
    texts: list[str] = []
    calls: dict[int, ToolCallMessage] = {}
    try:
        for event in events:
            if isinstance(event, TextDelta):
                texts.append(event.text)
                show_text(event.text)
            elif isinstance(event, ToolCallDelta):
                call = calls.setdefault(event.index, ToolCallMessage(id="", name="", arguments=""))
                call["id"] += event.id or ""
                call["name"] += event.name or ""
                call["arguments"] += event.arguments
            elif isinstance(event, Finished):
                made = tuple(calls.values())
                return CompleteReply("".join(texts), event.reason, event.usage, made)
    except KeyboardInterrupt:
        _close(events)
    return CompleteReply("".join(texts), "cancelled", None)


def _close(events: Iterator[Event]) -> None:
    close = getattr(events, "close", None)
    if close is not None:
        close()
