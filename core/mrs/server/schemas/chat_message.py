"""Messages of a chat request, and what chat templates get of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Literal

from msgspec import Struct

from mrs.media.audio_names import audio_uri
from mrs.media.image_source import named_kind
from mrs.media.read_media import ReadLimits, read_audio, read_media
from mrs.request import IMAGE_MARK, MediaKind, Message, text_of
from mrs.server.http.errors import ApiError, errors_of
from mrs.tools.read_messages import checked, read_calls, with_tool_names

#: Lists in requests are no longer: each of their items costs time, however short it is.
MOST_MESSAGES = 2**14
MOST_TOOLS = 2**10
#: In characters.
_LONGEST_SCHEMA = 4000
_LIMITS = ReadLimits(only_public=True)
_EXAMPLES = {"video": "video/mp4", "audio": "audio/wav"}

Role = Literal["system", "developer", "user", "assistant", "tool"]


class ImageUrl(Struct, kw_only=True):
    """A data: URI in base64 or, if the server allows them, a public web address."""

    without_effect: ClassVar = ("detail",)

    url: str
    detail: str | None = None


class TextPart(Struct, tag="text", tag_field="type", kw_only=True):
    """Text of a message."""

    text: str


class RefusalPart(Struct, tag="refusal", tag_field="type", kw_only=True):
    """Text of an assistant's message that refuses to answer."""

    refusal: str

    @property
    def text(self) -> str:
        return self.refusal


class ImagePart(Struct, tag="image_url", tag_field="type", kw_only=True):
    """An image of a message."""

    image_url: str | ImageUrl

    @property
    def url(self) -> str:
        return self.image_url if isinstance(self.image_url, str) else self.image_url.url


class VideoPart(Struct, tag="video_url", tag_field="type", kw_only=True):
    """A video of a message; its address is like that of an image."""

    video_url: str | ImageUrl

    @property
    def url(self) -> str:
        return self.video_url if isinstance(self.video_url, str) else self.video_url.url


class InputAudio(Struct, kw_only=True):
    """An audio file in base64, and its format: wav, mp3, flac, ogg, opus, m4a or webm."""

    data: str
    format: str


class InputAudioPart(Struct, tag="input_audio", tag_field="type", kw_only=True):
    """An audio file of a message."""

    input_audio: InputAudio

    @property
    def url(self) -> str:
        return audio_uri(self.input_audio.data, self.input_audio.format)


class AudioPart(Struct, tag="audio_url", tag_field="type", kw_only=True):
    """An audio file of a message; its address is like that of an image."""

    audio_url: str | ImageUrl

    @property
    def url(self) -> str:
        return self.audio_url if isinstance(self.audio_url, str) else self.audio_url.url


MediaPart = ImagePart | VideoPart | AudioPart | InputAudioPart
Part = TextPart | RefusalPart | MediaPart
#: The kinds of files in parts with media.
_KINDS: dict[type, MediaKind] = {
    ImagePart: "image",
    VideoPart: "video",
    AudioPart: "audio",
    InputAudioPart: "audio",
}


class ChatMessage(Struct, kw_only=True):
    """One message; `reasoning_content` is the thought before an assistant's message.

    reasoning, thinking  other names of the thought
    refusal              the text of a message that refuses to answer
    thinking_blocks, reasoning_details
                         copies of the thought for other servers, which are not read
    audio, function_call, prefix, partial
                         are refused
    """

    without_effect: ClassVar = ("thinking_blocks", "reasoning_details")

    role: Role
    content: str | list[Part] | None = None
    name: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    thinking: str | None = None
    refusal: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    thinking_blocks: list[Any] | None = None
    reasoning_details: list[Any] | None = None
    audio: dict[str, Any] | None = None
    function_call: dict[str, Any] | None = None
    prefix: bool | None = None
    partial: bool | None = None

    @property
    def parts(self) -> list[Part]:
        given = [TextPart(text=self.content)] if isinstance(self.content, str) else self.content
        refused = [RefusalPart(refusal=self.refusal)] if self.refusal else []
        return [*(given or ()), *refused]

    @property
    def thought(self) -> str | None:
        return self.reasoning_content or self.reasoning or self.thinking


def conversation(
    given: str | Sequence[ChatMessage],
    *,
    allow_image_urls: bool,
    check_media: Callable[[MediaKind, str], None],
) -> list[Message]:
    """The messages for the model, with their images read; it blocks while they are fetched.

    Before any is read, `check_media` sees the kind and the address of each, and may raise. Raises
    ApiError for images that the server does not read and for fields that it refuses,
    NotReadable for an image, and UsageError for a tool's result without its call.
    """
    if isinstance(given, str):
        return [Message(role="user", content=given)]
    for index, each in enumerate(given):
        for kind, url in _checked_addresses(each, f"messages[{index}]", allow_image_urls):
            check_media(kind, url)
    return with_tool_names(_message(each, f"messages[{index}]") for index, each in enumerate(given))


def with_schema(messages: Sequence[Message], text: str) -> list[Message]:
    """The messages, of which the system's or else the last one asks for JSON of this schema.

    A longer schema than _LONGEST_SCHEMA is enforced but not mentioned: it would fill the context.
    """
    index = 0 if messages[0]["role"] == "system" else len(messages) - 1
    if len(text) > _LONGEST_SCHEMA or messages[index]["role"] not in ("system", "user"):
        return list(messages)
    content = f"{text_of(messages[index])}\n\nAnswer in JSON that matches this schema: {text}"
    asking: Message = {**messages[index], "content": content}
    return [*messages[:index], asking, *messages[index + 1 :]]


def _checked_addresses(
    given: ChatMessage, where: str, allow_image_urls: bool
) -> Iterator[tuple[MediaKind, str]]:
    """The kind and the address of each image. Raises ApiError before any is fetched."""
    for index, part in enumerate(given.parts):
        if isinstance(part, MediaPart):
            kind = _KINDS[type(part)]
            field = "input_audio" if isinstance(part, InputAudioPart) else f"{kind}_url"
            here = f"{where}.content[{index}].{field}"
            with errors_of(here):
                url = part.url
            _check_address(url, kind, here, allow_image_urls)
            yield kind, url


def _message(given: ChatMessage, where: str) -> Message:
    _refuse_unread(given, where)
    text, images = "", []
    for part in given.parts:
        if isinstance(part, MediaPart):
            text += IMAGE_MARK
            read = read_audio if _KINDS[type(part)] == "audio" else read_media
            images.append(read(part.url, _LIMITS))
        else:
            text += part.text.replace(IMAGE_MARK, "")
    role = "system" if given.role == "developer" else given.role
    message = Message(role=role, content=None if given.content is None and not text else text)
    if images:
        message["images"] = images
    if given.thought:
        message["reasoning"] = given.thought
    if given.tool_calls:
        with errors_of(f"{where}.tool_calls"):
            message["tool_calls"] = read_calls(given.tool_calls)
    if given.tool_call_id is not None:
        message["tool_call_id"] = given.tool_call_id
    if given.name is not None:
        message["name"] = given.name
    with errors_of(where):
        return checked(message)


def _refuse_unread(given: ChatMessage, where: str) -> None:
    """Raises ApiError for a field that would change the prompt, and has no place in it."""
    reasons = {
        "audio": "replies with audio are not read: send its text as the content",
        "function_call": "that is the old form of tool_calls: send tool_calls",
        "prefix": "replies do not continue a message: leave it out",
        "partial": "replies do not continue a message: leave it out",
    }
    if not given.thought:
        for copy in ("thinking_blocks", "reasoning_details"):
            reasons[copy] = "it is not read: send the thought as reasoning_content"
    for name, reason in reasons.items():
        if getattr(given, name):
            raise ApiError(400, f"{where}.{name}: {reason}", f"{where}.{name}", "invalid_value")


def _check_address(url: str, kind: MediaKind, where: str, allow_image_urls: bool) -> None:
    """Raises ApiError for the path of a local file, and for addresses unless they are allowed."""
    scheme = url.partition(":")[0].lower()
    is_data_of_kind = scheme == "data" and (kind == "image" or named_kind(url) == kind)
    if is_data_of_kind or (allow_image_urls and scheme in ("http", "https")):
        return
    hint = f"send the {kind} as a data: URI in base64"
    if kind != "image":
        hint += f", as data:{_EXAMPLES[kind]};base64,\u2026"
    if scheme in ("http", "https"):
        hint += ", or start the server with --allow-image-urls"
    raise ApiError(400, f"the {kind} is not a data: URI: {hint}", where, "invalid_value")
