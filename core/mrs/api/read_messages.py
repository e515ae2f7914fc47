"""Read the messages of a request: roles, texts, images, videos and audio."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mrs.api.checks import ROLES, check_keys
from mrs.api.field_types import of_type, one_of, require
from mrs.errors import Unsupported, UsageError
from mrs.media.audio_names import audio_uri
from mrs.media.read_media import read_audio, read_media
from mrs.request import IMAGE_MARK, Media, Message
from mrs.tools.read_messages import THOUGHT_NAMES, checked, read_calls

#: The types of parts with an address, and what they are.
_MEDIA = {
    "image_url": "an image",
    "video_url": "a video",
    "audio_url": "an audio file",
    "input_audio": "an audio file",
}
#: The fields of a message that are strings.
_TEXTS = (*THOUGHT_NAMES, "refusal", "tool_call_id", "name")


def read_message(given: Mapping[str, Any]) -> Message:
    """A message with its images read. Raises UsageError, Unsupported and NotReadable."""
    given = {key: value for key, value in given.items() if value is not None}
    if "role" not in given:
        raise UsageError("a message lacks its role", hint='{"role": …, "content": …}')
    check_keys("a message", given, ("role", "content", "tool_calls", *_TEXTS))
    role = given["role"]
    require("the role of a message", role, one_of(*ROLES))
    for name in _TEXTS:
        if name in given:
            require(f"{name} of a message", given[name], of_type("a string", str))
    message = _contents(given.get("content"), given.get("refusal", ""))
    message["role"] = "system" if role == "developer" else role
    thought = next(filter(None, map(given.get, THOUGHT_NAMES)), None)
    if thought is not None:
        message["reasoning"] = thought
    if calls := read_calls(given.get("tool_calls")):
        message["tool_calls"] = calls
    if "tool_call_id" in given:
        message["tool_call_id"] = given["tool_call_id"]
    if "name" in given:
        message["name"] = given["name"]
    return checked(message)


def _contents(content: Any, refusal: str) -> Message:
    """A message of the user with this content, and the text of a refusal after it."""
    if content is None or isinstance(content, str):
        text = f"{content or ''}{refusal}"
        return Message(role="user", content=text if text or content is not None else None)
    if not isinstance(content, list):
        raise UsageError(
            f"the content of a message is {type(content).__name__}",
            hint="give a string or a list of parts",
        )
    images = [_image(part) for part in content if _type(part) in _MEDIA]
    text = "".join([*map(_text, content), refusal.replace(IMAGE_MARK, "")])
    message = Message(role="user", content=text)
    if images:
        message["images"] = images
    return message


def _type(part: Any) -> str:
    part_type = part.get("type") if isinstance(part, Mapping) else None
    if part_type not in ("text", *_MEDIA):
        raise Unsupported(
            "a message has a part that is neither text nor an image, a video or audio",
            hint="leave it out",
        )
    return str(part_type)


def _text(part: Mapping[str, Any]) -> str:
    """What the part adds to the content of its message: its text, or an `IMAGE_MARK`."""
    if part["type"] in _MEDIA:
        return IMAGE_MARK
    text = part.get("text")
    if not isinstance(text, str):
        raise UsageError("a part of a message lacks its text", hint='{"type": "text", "text": …}')
    check_keys("a part of a message", part, ("type", "text"))
    return text.replace(IMAGE_MARK, "")


def _image(part: Mapping[str, Any]) -> Media:
    key, kind = part["type"], _MEDIA[part["type"]]
    check_keys("a part of a message", part, ("type", key))
    url = part.get(key)
    if key == "input_audio":
        hint = '{"input_audio": {"data": …, "format": "wav"}}'
        if not isinstance(url, Mapping) or not all(
            isinstance(url.get(name), str) for name in ("data", "format")
        ):
            raise UsageError("input_audio lacks its data or its format", hint=hint)
        check_keys(key, url, ("data", "format"))
        return read_media(audio_uri(url["data"], url["format"]))
    if isinstance(url, Mapping):
        check_keys(kind, url, ("url", "detail"))
        require(f"detail of {kind}", url.get("detail") or "auto", one_of("auto", "high"))
        url = url.get("url")
    if not isinstance(url, str) or not url:
        raise UsageError(f"{kind} lacks its URL", hint=f'{{"{key}": {{"url": …}}}}')
    return read_audio(url) if key == "audio_url" else read_media(url)
