"""A conversation with a loaded model: what was said, how to sample, and the log of both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field

from mrs.errors import UsageError
from mrs.events import Event, Finished, FinishReason, TextDelta, Usage
from mrs.request import Message, Sampling
from mrs_cli.environment import Model
from mrs_cli.log import RequestLog


@dataclass(frozen=True)
class Reply:
    """What came back. A reply that was stopped has no `usage` where the model gave none."""

    text: str
    reason: FinishReason
    usage: Usage | None


Show = Callable[[Iterator[Event]], Reply]


def receive(events: Iterator[Event], show_text: Callable[[str], None]) -> Reply:
    """The whole reply, its text given to `show_text` as it arrives.

    Ctrl-C stops the reply and keeps what was said so far.
    """
    said: list[str] = []
    try:
        for event in events:
            if isinstance(event, TextDelta):
                said.append(event.text)
                show_text(event.text)
            elif isinstance(event, Finished):
                return Reply("".join(said), event.reason, event.usage)
    except KeyboardInterrupt:
        _stop(events)
    return Reply("".join(said), "cancelled", None)


def _stop(events: Iterator[Event]) -> None:
    close = getattr(events, "close", None)
    if close is not None:
        close()


@dataclass
class Session:
    """`turns` are the user's and the assistant's messages, oldest first."""

    model: Model
    sampling: Sampling
    system: str | None = None
    log: RequestLog | None = None
    turns: list[Message] = field(default_factory=list)

    def messages(self) -> list[Message]:
        """The conversation as the model sees it."""
        if self.system is None:
            return list(self.turns)
        return [{"role": "system", "content": self.system}, *self.turns]

    def forget(self) -> None:
        """Start over; the system prompt stays."""
        self.turns.clear()

    def ask(self, text: str, show: Show) -> Reply:
        """The model's reply to `text`, shown by `show`.

        A question that got no answer, because of an error or because it was stopped before the
        first word, leaves no trace in the conversation.
        """
        self.turns.append({"role": "user", "content": text})
        try:
            reply = show(self._stream(text))
        except BaseException:
            self.turns.pop()
            raise
        if self.log:
            self.log.response(
                reply.text, reply.reason, asdict(reply.usage) if reply.usage else None
            )
        if reply.text or reply.reason != "cancelled":
            self.turns.append({"role": "assistant", "content": reply.text})
        else:
            self.turns.pop()
        return reply

    def _stream(self, text: str) -> Iterator[Event]:
        if self.model.has_chat_template:
            messages = self.messages()
            if self.log:
                self.log.request(messages, asdict(self.sampling))
            return self.model.stream_chat(messages, self.sampling)
        if self.system is not None:
            raise UsageError(
                "the model has no chat template to put --system in",
                hint="give one with --chat-template",
            )
        if self.log:
            self.log.request(text, asdict(self.sampling))
        return self.model.stream_completion(text, self.sampling)
