"""A conversation with a loaded model, with its settings and its log."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from mrs.errors import UsageError
from mrs.events import Event, ReplyUsage
from mrs.request import Message, Sampling, VisionRequest
from mrs.text.thoughts import split_thought
from mrs_cli.chat.chat_images import count_images, has_videos, with_image_names, without_images
from mrs_cli.chat.question import Question
from mrs_cli.chat.request_log import RequestLog
from mrs_cli.chat.saved_chat import SavedChat
from mrs_cli.environment import Model
from mrs_cli.render.reply_events import CompleteReply

Show = Callable[[Iterator[Event]], CompleteReply]


@dataclass
class Session:
    """`turns` are alternating messages of user and assistant, oldest first.

    `usage` belongs to the last reply, and is None after an undo or a load. `unanswered` is the
    last question if it got no answer. `vision` is set for vision models. `chosen_by` says where a
    person chose a setting; the others are the model's or the defaults.
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
    chosen_by: dict[str, str] = field(default_factory=dict)

    @property
    def saved(self) -> SavedChat:
        """The conversation with all that is needed to continue it."""
        return SavedChat(self.model_id, self.system, self.sampling, self.turns)

    def messages(self) -> list[Message]:
        """The messages for the model."""
        return self._with_system(self.turns)

    def resume(self, turns: Sequence[Message]) -> None:
        """Continue another conversation; the system prompt stays."""
        self.turns[:] = turns
        self.usage = self.unanswered = None

    def clear(self) -> None:
        """Start a new conversation; the system prompt stays."""
        self.resume([])

    def last_question(self) -> Question:
        """The last question, to ask it again; UsageError if there is none."""
        if self.unanswered is not None:
            return self.unanswered
        if not self.turns:
            raise UsageError("there is no message yet")
        return Question.of_message(self.turns[-2], replacing=True)

    def undo(self) -> Question:
        """Removes the last question and its reply; UsageError if there is none."""
        if not self.turns:
            raise UsageError("there is no message yet")
        question = Question.of_message(self.turns[-2])
        self.resume(self.turns[:-2])
        return question

    def attach(self, question: Question) -> Question:
        """The question with the images that its text names, for vision models.

        Raises NotReadable.
        """
        if self.vision is None:
            return question
        try:
            return question.with_images_read()
        except BaseException:
            self.unanswered = question
            raise

    def images_with(self, question: Question) -> int:
        """The number of images in the conversation and the question, those of videos included."""
        messages = [*self._before(question), question.message]
        return self.model.num_images(messages) if has_videos(messages) else count_images(messages)

    def start(self, question: Question) -> Iterator[Event]:
        """Starts the reply to the question alone; `ask` waits for it. Raises MrsError."""
        question = self.attach(question)
        return self._reply(question.text, self._with_system([question.message]))

    def ask(
        self, question: Question, show: Show, started: Iterator[Event] | None = None
    ) -> CompleteReply:
        """The model's reply, shown by `show`; `started` is what `start` returned.

        A question without an answer, after an error or if it was stopped before the first word,
        leaves the conversation unchanged.
        """
        question = self.attach(question)
        before = list(self.turns)
        self.resume([*self._before(question), question.message])
        try:
            reply = show(self._stream(question.text, started))
        except BaseException:
            self.resume(before)
            self.unanswered = question
            raise
        if self.log:
            self.log.response(reply.text, reply.reason, reply.usage)
        if reply.text or reply.reason != "cancelled":
            self.turns.append(_answered(reply.text))
            self.usage = reply.usage
        else:
            self.resume(before)
            self.unanswered = question
        return reply

    def context_used_tokens(self) -> int:
        """Tokens of the prompt before the next question."""
        return self._prompt_tokens(self.turns, Question(""))

    def surplus(self, question: Question) -> int | None:
        """How many of the oldest turns to drop, to leave a quarter of the context for a reply.

        All of them if even that is not enough; None if the question alone is too long.
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

    def drop(self, count: int) -> None:
        """Removes the oldest questions and their replies."""
        del self.turns[: 2 * count]

    def _before(self, question: Question) -> list[Message]:
        return self.turns[:-2] if question.replacing else list(self.turns)

    def _prompt_tokens(self, turns: Sequence[Message], question: Question) -> int:
        return self.model.prompt_tokens(self._with_system([*turns, question.message]))

    def _with_system(self, turns: Sequence[Message]) -> list[Message]:
        messages = list(turns) if self.vision is not None else list(map(without_images, turns))
        if self.system is None:
            return messages
        return [{"role": "system", "content": self.system}, *messages]

    def _stream(self, text: str, started: Iterator[Event] | None) -> Iterator[Event]:
        messages = self.messages()
        if self.log:
            has_template = self.model.has_chat_template
            asked = list(map(with_image_names, messages)) if has_template else text
            self.log.request(asked, self.sampling)
        return self._reply(text, messages) if started is None else started

    def _reply(self, text: str, messages: list[Message]) -> Iterator[Event]:
        if self.model.has_chat_template or count_images(messages):
            return self.model.stream_chat(messages, self.sampling)
        if self.system is not None:
            raise UsageError(
                "--system needs a chat template, and the model has none",
                hint="give one with --chat-template FILE",
            )
        return self.model.stream_completion(text, self.sampling)


def _answered(reply: str) -> Message:
    """The message of a reply: its thought apart from its answer."""
    thought, answer = split_thought(reply)
    message: Message = {"role": "assistant", "content": answer}
    return {**message, "reasoning": thought} if thought else message
