"""A conversation with a loaded model: what was said, how to sample, and the log of both."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace

from mrs.errors import UsageError
from mrs.events import Event, Finished, FinishReason, ReplyUsage, TextDelta
from mrs.request import Message, Sampling, VisionRequest
from mrs_cli.environment import Model
from mrs_cli.log import RequestLog
from mrs_cli.pictures import attached, count_images, reworded, typed, with_names, without_images
from mrs_cli.saved_chat import SavedChat


@dataclass(frozen=True)
class Reply:
    """What came back. A reply that was stopped has no `usage` where the model gave none."""

    text: str
    reason: FinishReason
    usage: ReplyUsage | None


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
    """What is asked; `replacing` puts it and its reply in the place of the last exchange.

    `text` has a mark for each of `images`. These are None while it is as a person typed it, with
    names of files in it; names of pictures that are `known` mean those.
    """

    text: str
    replacing: bool = False
    images: tuple[str, ...] | None = None
    known: tuple[str, ...] = ()

    @property
    def typed(self) -> str:
        """The question as a person would type it."""
        return typed(self.text, self.images or ())

    @property
    def message(self) -> Message:
        if not self.images:
            return {"role": "user", "content": self.text}
        return {"role": "user", "content": self.text, "images": list(self.images)}

    def with_text(self, text: str, *, keeps_images: bool = False) -> Question:
        """What a person typed in the place of this question, perhaps to keep its images."""
        known = self.images or self.known
        return Question(
            reworded(text, known) if keeps_images else text, self.replacing, None, known
        )


def _question(message: Message) -> Question:
    return Question(message["content"], images=tuple(message.get("images", ())))


@dataclass
class Session:
    """`turns` are the user's and the assistant's messages in turn, oldest first.

    `usage` is that of the last reply, as long as that is the conversation's last turn;
    `unanswered` is the last question if it got no answer. `vision` is there if the model sees.
    """

    model: Model
    sampling: Sampling
    system: str | None = None
    log: RequestLog | None = None
    model_id: str = ""
    turns: list[Message] = field(default_factory=list)
    usage: ReplyUsage | None = None
    unanswered: Question | None = None
    vision: VisionRequest | None = None

    @property
    def saved(self) -> SavedChat:
        """The conversation with all that it takes to go on."""
        return SavedChat(self.model_id, self.system, self.sampling, self.turns)

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
        return replace(_question(self.turns[-2]), replacing=True)

    def undo(self) -> Question:
        """Takes the last question and its reply back; UsageError where there is none."""
        if not self.turns:
            raise UsageError("nothing was said yet")
        question = _question(self.turns[-2])
        self.resume(self.turns[:-2])
        return question

    def attach(self, question: Question) -> Question:
        """The question with the pictures that it names, where the model sees. Raises NotReadable."""
        if self.vision is None or question.images is not None:
            return question
        try:
            shown = attached(question.text, question.known)
        except BaseException:
            self.unanswered = question
            raise
        return replace(question, text=shown.text, images=shown.images)

    def images_with(self, question: Question) -> int:
        """How many images the conversation has with the question."""
        return count_images([*self._before(question), question.message])

    def begin(self, question: Question) -> Iterator[Event]:
        """The reply to the question alone, to be asked for later. Raises MrsError."""
        question = self.attach(question)
        return self._reply(question.text, self._with_system([question.message]))

    def ask(self, question: Question, show: Show, begun: Iterator[Event] | None = None) -> Reply:
        """The model's reply, shown by `show`; `begun` is it if it was begun already.

        A question that got no answer, because of an error or because it was stopped before the
        first word, leaves the conversation as it was.
        """
        question = self.attach(question)
        before = list(self.turns)
        self.resume([*self._before(question), question.message])
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
        return self._prompt_tokens(self.turns, Question(""))

    def surplus(self, question: Question) -> int | None:
        """How many of the oldest exchanges must go to leave a quarter of the context for a reply.

        All of them where not even that is enough; None where the question alone is too long.
        """
        turns, context_tokens = self._before(question), self.model.context_tokens
        if self._prompt_tokens([], question) >= context_tokens:
            return None
        return bisect_left(
            range(len(turns) // 2),
            True,
            key=lambda count: (
                self._prompt_tokens(turns[2 * count :], question) <= context_tokens * 3 // 4
            ),
        )

    def drop(self, exchanges: int) -> None:
        """Forgets the oldest questions and their replies."""
        del self.turns[: 2 * exchanges]

    def _before(self, question: Question) -> list[Message]:
        return self.turns[:-2] if question.replacing else list(self.turns)

    def _prompt_tokens(self, turns: Sequence[Message], question: Question) -> int:
        return self.model.prompt_tokens(self._with_system([*turns, question.message]))

    def _with_system(self, turns: Sequence[Message]) -> list[Message]:
        seen = list(turns) if self.vision is not None else list(map(without_images, turns))
        if self.system is None:
            return seen
        return [{"role": "system", "content": self.system}, *seen]

    def _stream(self, text: str, begun: Iterator[Event] | None) -> Iterator[Event]:
        messages = self.messages()
        if self.log:
            said = list(map(with_names, messages)) if self.model.has_chat_template else text
            self.log.request(said, asdict(self.sampling))
        return self._reply(text, messages) if begun is None else begun

    def _reply(self, text: str, messages: list[Message]) -> Iterator[Event]:
        if self.model.has_chat_template or count_images(messages):
            return self.model.stream_chat(messages, self.sampling)
        if self.system is not None:
            raise UsageError(
                "the model has no chat template to put --system in",
                hint="give one with --chat-template",
            )
        return self.model.stream_completion(text, self.sampling)
