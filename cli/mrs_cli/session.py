"""A conversation with a loaded model: what was said, how to sample, and the log of both."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
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


@dataclass(frozen=True)
class Question:
    """What is asked; `replacing` puts it and its reply in the place of the last exchange."""

    text: str
    replacing: bool = False


@dataclass
class Session:
    """`turns` are the user's and the assistant's messages in turn, oldest first.

    `usage` is that of the last reply, as long as that is the conversation's last turn;
    `unanswered` is the last question if it got no answer.
    """

    model: Model
    sampling: Sampling
    system: str | None = None
    log: RequestLog | None = None
    model_id: str = ""
    turns: list[Message] = field(default_factory=list)
    usage: Usage | None = None
    unanswered: Question | None = None

    def messages(self) -> list[Message]:
        """The conversation as the model sees it."""
        return self._with_system(self.turns)

    def resume(self, turns: Sequence[Message]) -> None:
        """Go on from another conversation; the system prompt stays."""
        self.turns[:] = turns
        self.usage = self.unanswered = None

    def forget(self) -> None:
        """Start over; the system prompt stays."""
        self.resume([])

    def last_question(self) -> Question:
        """The last question, to be asked again; UsageError where there is none."""
        if self.unanswered is not None:
            return self.unanswered
        if not self.turns:
            raise UsageError("nothing was asked yet")
        return Question(self.turns[-2]["content"], replacing=True)

    def undo(self) -> str:
        """Takes the last question and its reply back; UsageError where there is none."""
        if not self.turns:
            raise UsageError("nothing was said yet")
        question = self.turns[-2]["content"]
        self.resume(self.turns[:-2])
        return question

    def begin(self, text: str) -> Iterator[Event]:
        """The reply to `text` alone, to be asked for later. Raises MrsError."""
        return self._reply(text, self._with_system([{"role": "user", "content": text}]))

    def ask(self, question: Question, show: Show, begun: Iterator[Event] | None = None) -> Reply:
        """The model's reply, shown by `show`; `begun` is it if it was begun already.

        A question that got no answer, because of an error or because it was stopped before the
        first word, leaves the conversation as it was.
        """
        before = list(self.turns)
        self.resume([*self._before(question), {"role": "user", "content": question.text}])
        try:
            reply = show(self._stream(question.text, begun))
        except BaseException:
            self.resume(before)
            self.unanswered = question
            raise
        if self.log:
            self.log.response(
                reply.text, reply.reason, asdict(reply.usage) if reply.usage else None
            )
        if reply.text or reply.reason != "cancelled":
            self.turns.append({"role": "assistant", "content": reply.text})
            self.usage = reply.usage
        else:
            self.resume(before)
            self.unanswered = question
        return reply

    def context_used_tokens(self) -> int:
        """Tokens of the prompt that the next question is added to."""
        return self._prompt_tokens(self.turns, "")

    def surplus(self, question: Question) -> int | None:
        """How many of the oldest exchanges must go to leave a quarter of the context for a reply.

        All of them where not even that is enough; None where the question alone is too long.
        """
        turns, context_tokens = self._before(question), self.model.context_tokens
        if self._prompt_tokens([], question.text) >= context_tokens:
            return None
        return bisect_left(
            range(len(turns) // 2),
            True,
            key=lambda count: (
                self._prompt_tokens(turns[2 * count :], question.text) <= context_tokens * 3 // 4
            ),
        )

    def drop(self, exchanges: int) -> None:
        """Forgets the oldest questions and their replies."""
        del self.turns[: 2 * exchanges]

    def _before(self, question: Question) -> list[Message]:
        return self.turns[:-2] if question.replacing else list(self.turns)

    def _prompt_tokens(self, turns: Sequence[Message], question: str) -> int:
        return self.model.prompt_tokens(
            self._with_system([*turns, {"role": "user", "content": question}])
        )

    def _with_system(self, turns: Sequence[Message]) -> list[Message]:
        if self.system is None:
            return list(turns)
        return [{"role": "system", "content": self.system}, *turns]

    def _stream(self, text: str, begun: Iterator[Event] | None) -> Iterator[Event]:
        messages = self.messages()
        if self.log:
            said = messages if self.model.has_chat_template else text
            self.log.request(said, asdict(self.sampling))
        return self._reply(text, messages) if begun is None else begun

    def _reply(self, text: str, messages: list[Message]) -> Iterator[Event]:
        if self.model.has_chat_template:
            return self.model.stream_chat(messages, self.sampling)
        if self.system is not None:
            raise UsageError(
                "the model has no chat template to put --system in",
                hint="give one with --chat-template",
            )
        return self.model.stream_completion(text, self.sampling)
