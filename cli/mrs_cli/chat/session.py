"""A conversation with a loaded model, with its settings and its log."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mrs.errors import UsageError
from mrs.events import Event, ReplyUsage
from mrs.request import Message, Sampling, ToolCallMessage, VisionRequest, text_of
from mrs.text.thoughts import split_thought
from mrs_cli.chat.chat_images import count_images, has_videos, with_image_names
from mrs_cli.chat.chat_message import ChatMessage, for_model, turn_starts
from mrs_cli.chat.question import Question
from mrs_cli.chat.request_log import RequestLog
from mrs_cli.chat.saved_chat import SavedChat
from mrs_cli.chat.session_store import SessionFile
from mrs_cli.environment import ChatModel
from mrs_cli.render.reply_events import CompleteReply

if TYPE_CHECKING:
    from mrs_cli.chat.tools.tool_box import ToolBox

#: Rounds of calls of tools before a reply that has to do without.
MAX_ROUNDS = 16

Show = Callable[[Iterator[Event]], CompleteReply]


@dataclass
class Session:
    """`turns` are the messages without the system prompt, oldest first: see `SavedChat`.

    `title` is empty unless a person gave one, and `file` is where the session is kept. `usage`
    belongs to the last reply, and is None after an undo or a load. `unanswered` is the last
    question if it got no answer. `vision` is set for vision models. `chosen_by` says where a
    person chose a setting; the others are the model's or the defaults.
    """

    model: ChatModel
    sampling: Sampling
    system: str | None = None
    log: RequestLog | None = None
    model_id: str = ""
    turns: list[ChatMessage] = field(default_factory=list)
    usage: ReplyUsage | None = None
    unanswered: Question | None = None
    vision: VisionRequest | None = None
    chosen_by: dict[str, str] = field(default_factory=dict)
    tools: ToolBox | None = None
    title: str = ""
    file: SessionFile = field(default_factory=SessionFile)

    @property
    def saved(self) -> SavedChat:
        """The conversation with all that is needed to continue it."""
        return SavedChat(
            self.model_id, self.system, self.sampling, list(self.turns), given_title=self.title
        )

    def messages(self) -> list[Message]:
        """The messages for the model."""
        return self._with_system(self.turns)

    def resume(self, turns: Sequence[ChatMessage]) -> None:
        """Continue with other messages; the system prompt stays."""
        self.turns[:] = turns
        self.usage = self.unanswered = None

    def clear(self) -> None:
        """Start a new session; the system prompt stays."""
        self.resume([])
        self.title, self.file = "", SessionFile()

    def last_question(self) -> Question:
        """The last question, to ask it again; UsageError if there is none."""
        if self.unanswered is not None:
            return self.unanswered
        if not self.turns:
            raise UsageError("there is no message yet")
        return Question.of_message(self.turns[turn_starts(self.turns)[-1]], replacing=True)

    def undo(self) -> Question:
        """Removes the last question and its reply; UsageError if there is none."""
        if not self.turns:
            raise UsageError("there is no message yet")
        last = turn_starts(self.turns)[-1]
        question = Question.of_message(self.turns[last])
        self.resume(self.turns[:last])
        return question

    def attach(self, question: Question) -> Question:
        """The question with the images that its text names; without vision they are `unseen`.

        Raises NotReadable.
        """
        if self.vision is None:
            return question.without_images_read()
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
        return self._reply(self._with_system([question.message]))

    def ask(
        self, question: Question, show: Show, started: Iterator[Event] | None = None
    ) -> CompleteReply:
        """The model's reply, shown by `show`; `started` is what `start` returned.

        Before it, the model may call tools in some rounds; the last reply has to do without.

        A question without an answer, after an error or if it was stopped before the first word,
        leaves the conversation unchanged.
        """
        question = self.attach(question)
        before = list(self.turns)
        self.resume([*self._before(question), question.message])
        try:
            reply = self._shown(show, started)
            for round_number in range(1, MAX_ROUNDS + 1):
                if self.tools is None or not reply.calls:
                    break
                if reply.reason != "tool_calls":
                    self.tools.tell_cut(reply.calls[-1])
                    break
                self.turns.append({**self._answered(reply.text), "tool_calls": list(reply.calls)})
                self.turns += [_result(call, self.tools.run(call)) for call in reply.calls]
                reply = self._shown(show, may_call=round_number < MAX_ROUNDS)
        except BaseException:
            self.resume(before)
            self.unanswered = question
            raise
        if reply.text or reply.reason != "cancelled":
            self.turns.append(self._answered(reply.text))
            self.usage = reply.usage
        else:
            self.resume(before)
            self.unanswered = question
        return reply

    def _answered(self, reply: str) -> ChatMessage:
        """The message of a reply: its thought apart from its answer, and who gave it."""
        thought, answer = split_thought(reply)
        message: ChatMessage = {"role": "assistant", "content": answer}
        if thought:
            message["reasoning"] = thought
        if self.model_id:
            message["model"] = self.model_id
        return message

    def _shown(
        self, show: Show, started: Iterator[Event] | None = None, *, may_call: bool = True
    ) -> CompleteReply:
        reply = show(self._stream(started, may_call=may_call))
        if self.log:
            self.log.response(reply.text, reply.reason, reply.usage)
        return reply

    def context_used_tokens(self) -> int:
        """Tokens of the prompt before the next question."""
        return self._prompt_tokens(self.turns, Question(""))

    def surplus(self, question: Question) -> int | None:
        """How many of the oldest turns to drop, to leave a quarter of the context for a reply.

        All of them if even that is not enough; None if the question alone is too long.
        """
        turns, context_tokens = self._before(question), self.model.context_tokens
        starts = [*turn_starts(turns), len(turns)]
        if self.tokens_of(question) >= context_tokens:
            return None
        return bisect_left(
            range(len(starts) - 1),
            True,
            key=lambda count: (
                self._prompt_tokens(turns[starts[count] :], question) <= context_tokens * 3 // 4
            ),
        )

    def tokens_of(self, question: Question) -> int:
        """Tokens of a prompt with this question alone."""
        return self._prompt_tokens([], question)

    def keep(self) -> str:
        """Writes the session to its file if it has changed; returns what to tell the person."""
        return self.file.keep(self.saved)

    def drop(self, count: int) -> None:
        """Removes the oldest questions and their replies."""
        del self.turns[: [*turn_starts(self.turns), len(self.turns)][count]]

    def _before(self, question: Question) -> list[ChatMessage]:
        if question.replacing and self.turns:
            return self.turns[: turn_starts(self.turns)[-1]]
        return list(self.turns)

    def _prompt_tokens(self, turns: Sequence[ChatMessage], question: Question) -> int:
        messages = self._with_system([*turns, question.message])
        request = self.tools.request if self.tools is not None else None
        if request is None:
            return self.model.prompt_tokens(messages)
        return self.model.prompt_tokens(messages, tools=request)

    def _with_system(self, turns: Sequence[ChatMessage]) -> list[Message]:
        messages = [for_model(each, vision=self.vision is not None) for each in turns]
        if self.system is None:
            return messages
        return [{"role": "system", "content": self.system}, *messages]

    def _stream(self, started: Iterator[Event] | None, *, may_call: bool) -> Iterator[Event]:
        messages = self.messages()
        if self.log:
            has_template = self.model.has_chat_template
            text = text_of(messages[-1])
            asked = list(map(with_image_names, messages)) if has_template else text
            self.log.request(asked, self.sampling)
        return self._reply(messages, may_call=may_call) if started is None else started

    def _reply(self, messages: list[Message], *, may_call: bool = True) -> Iterator[Event]:
        request = self.tools.request if self.tools is not None and may_call else None
        if request is not None:
            return self.model.stream_chat(messages, self.sampling, tools=request)
        if self.model.has_chat_template or count_images(messages):
            return self.model.stream_chat(messages, self.sampling)
        if self.system is not None:
            raise UsageError(
                "--system needs a chat template, and the model has none",
                hint="give one with --chat-template FILE",
            )
        return self.model.stream_completion(text_of(messages[-1]), self.sampling)


def _result(call: ToolCallMessage, text: str) -> ChatMessage:
    return {"role": "tool", "content": text, "tool_call_id": call["id"], "name": call["name"]}
