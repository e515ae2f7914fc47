"""Read the messages of a request: roles, texts, images and videos."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mrs.api.checks import ROLES, check_keys
from mrs.api.field_types import of_type, one_of, require
from mrs.errors import Unsupported, UsageError
from mrs.request import IMAGE_MARK, Message
from mrs.tools.read_messages import read_calls

#: The types of parts with an address, and what they are.
_MEDIA = {"image_url": "an image", "video_url": "a video"}


def read_message(given: Mapping[str, Any]) -> Message:
    """A message as chat templates get it. Raises UsageError and Unsupported."""
    calls = read_calls(given.get("tool_calls"))
    if "role" not in given or not (calls or "content" in given):
        raise UsageError("a message lacks its role or content", hint='{"role": …, "content": …}')
    check_keys("a message", given, ("role", "content", "tool_calls", "tool_call_id", "name"))
    role, content = given["role"], given.get("content")
    require("the role of a message", role, one_of(*ROLES))
    message = _contents("" if content is None and calls else content)
    message["role"] = role
    if calls:
        message["tool_calls"] = calls
    for name in ("tool_call_id", "name"):
        if given.get(name) is not None:
            require(f"{name} of a message", given[name], of_type("a string", str))
            message[name] = given[name]
    return message


def _contents(content: Any) -> Message:
    """A message of the user with this content."""
    role = "user"
    if isinstance(content, str):
        return Message(role=role, content=content)
    if not isinstance(content, list):
        raise UsageError(
            f"the content of a message is {type(content).__name__}",
            hint="give a string or a list of parts",
        )
    images = [_image(part) for part in content if _type(part) in _MEDIA]
    text = "".join(map(_text, content))
    if not images:
        return Message(role=role, content=text)
    return Message(role=role, content=text, images=images)


def _type(part: Any) -> str:
    part_type = part.get("type") if isinstance(part, Mapping) else None
    if part_type not in ("text", *_MEDIA):
        raise Unsupported(
            "a message has a part that is neither text nor an image nor a video",
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
    return text.replace(IMAGE_MARK, "")


def _image(part: Mapping[str, Any]) -> str:
    key, kind = part["type"], _MEDIA[part["type"]]
    url = part.get(key)
    if isinstance(url, Mapping):
        url = url.get("url")
    if not isinstance(url, str) or not url:
        raise UsageError(f"{kind} lacks its URL", hint=f'{{"{key}": {{"url": …}}}}')
    return url
