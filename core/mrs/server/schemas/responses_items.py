"""Items of OpenAI's Responses interface, in requests and in responses."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from msgspec import Struct

from mrs.api.responses import ResponseLogprob

Status = Literal["in_progress", "completed", "incomplete"]


class InputText(Struct, tag="input_text", tag_field="type", kw_only=True):
    """A text of a request."""

    text: str


class InputImage(Struct, tag="input_image", tag_field="type", kw_only=True):
    """An image: a data: URI in base64 or, if the server allows them, a public web address."""

    without_effect: ClassVar = ("detail",)

    image_url: str
    detail: str | None = None


class InputVideo(Struct, tag="input_video", tag_field="type", kw_only=True):
    """A video; its address is like that of an image."""

    video_url: str


class OutputText(Struct, tag="output_text", tag_field="type", kw_only=True):
    """A text of a reply."""

    without_effect: ClassVar = ("annotations", "logprobs")

    text: str
    annotations: list[Any] = []
    logprobs: list[ResponseLogprob] = []


class PlainText(Struct, tag="text", tag_field="type", kw_only=True):
    """A text, as some programs write it."""

    text: str


class Refusal(Struct, tag="refusal", tag_field="type", kw_only=True):
    """The text of a reply that refuses to answer."""

    refusal: str


class ReasoningText(Struct, tag="reasoning_text", tag_field="type", kw_only=True):
    """Thoughts."""

    text: str


class SummaryText(Struct, tag="summary_text", tag_field="type", kw_only=True):
    """A summary of thoughts, which other servers write."""

    text: str


InputPart = InputText | InputImage | InputVideo | OutputText | PlainText | Refusal
ResultPart = InputText | InputImage | InputVideo | PlainText


class InputMessageItem(Struct, tag="message", tag_field="type", kw_only=True):
    """A message of a conversation."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[InputPart]


class FunctionCallItem(Struct, tag="function_call", tag_field="type", kw_only=True):
    """A call of a function; `arguments` are JSON."""

    call_id: str
    name: str
    arguments: str
    id: str | None = None
    status: Status | None = None


class FunctionOutputItem(Struct, tag="function_call_output", tag_field="type", kw_only=True):
    """What the call `call_id` has returned."""

    call_id: str
    output: str | list[ResultPart]


class ReasoningItem(Struct, tag="reasoning", tag_field="type", kw_only=True):
    """Thoughts before a message or a call."""

    id: str | None = None
    summary: list[SummaryText] = []
    content: list[ReasoningText] | None = None
    status: Status | None = None

    @property
    def text(self) -> str:
        return "\n".join(each.text for each in self.content or self.summary)


class OutputMessageItem(Struct, tag="message", tag_field="type", kw_only=True):
    """A message of a reply."""

    id: str
    content: list[OutputText]
    role: str = "assistant"
    status: Status = "in_progress"


InputItem = InputMessageItem | FunctionCallItem | FunctionOutputItem | ReasoningItem
OutputItem = ReasoningItem | OutputMessageItem | FunctionCallItem
