"""Conversations in files.

A file is one JSON object: `format` is `mrs-chat`, and `version` counts incompatible changes. All
other fields may be missing, and unknown fields are ignored. So a newer program reads every older
file, and an older program reads a newer file if it knows the `version`.
"""

from __future__ import annotations

import stat
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeGuard, TypeVar

from mrs.errors import UsageError
from mrs.media.read_media import read_media, to_data_uri
from mrs.process.files import read_at_most, replace_file
from mrs.request import IMAGE_MARK, Media, Sampling, ToolCallMessage
from mrs_cli.chat.chat_message import ChatMessage, TextFile, first_text, turn_starts
from mrs_cli.chat.chat_settings import restored, to_json
from mrs_cli.render.safe_text import json_text

FORMAT = "mrs-chat"
VERSION = 1
#: A larger file is no chat of texts that a person has read.
MAX_FILE_BYTES = 64 * 1024**2
_Item = TypeVar("_Item")


@dataclass(frozen=True)
class SavedChat:
    """`turns` are messages: each of the user, calls of tools with their results, and a reply.

    `given_title` is empty unless a person chose one.
    """

    model_id: str
    system: str | None
    sampling: Sampling
    turns: list[ChatMessage]
    unknown_settings: tuple[str, ...] = ()
    given_title: str = ""

    @property
    def title(self) -> str:
        """The title that a person gave, or the first message."""
        return self.given_title or first_text(self.turns)

    @property
    def num_turns(self) -> int:
        return len(turn_starts(self.turns))


def save(chat: SavedChat, name: str) -> Path:
    """Writes a file that only the owner may read, and returns its path.

    Replaces saved chats, but no other files. Raises UsageError.
    """
    path = path_of(name)
    try:
        if path.exists() and not _is_saved_chat(path):
            raise UsageError(f"{path} exists and is not a saved chat", hint="give another name")
        replace_file(path.resolve(), [to_file(chat)])
    except OSError as error:
        raise UsageError(f"{path} cannot be written", where=error.strerror or "") from error
    return path


def to_file(chat: SavedChat) -> bytes:
    """The content of the chat's file. UsageError if it is larger than `load` reads."""
    value = {
        "format": FORMAT,
        "version": VERSION,
        "saved": datetime.now(UTC).isoformat(timespec="seconds"),
        **({"title": chat.given_title} if chat.given_title else {}),
        "model": chat.model_id,
        "system": chat.system,
        "sampling": to_json(chat.sampling),
        "messages": list(map(_to_json, chat.turns)),
    }
    content = (json_text(value, indent=2) + "\n").encode("utf-8", "replace")
    if len(content) > MAX_FILE_BYTES:
        raise UsageError(
            f"the conversation has more than {MAX_FILE_BYTES >> 20} MiB",
            hint="\\new begins another",
        )
    return content


def load(name: str) -> SavedChat:
    """What `save` wrote; UsageError if the file is missing, damaged or not a saved chat.

    Raises NotReadable for an image that a person has put into it by its name.
    """
    path = path_of(name)
    saved = _read(path)
    if saved.get("format") != FORMAT:
        raise UsageError(f"{path} is not a saved chat")
    version = saved.get("version")
    if type(version) is not int or version < 1:
        raise _damaged(path, "it has no version")
    if version > VERSION:
        raise UsageError(
            f"{path} has version {version}, but this mrs reads versions up to {VERSION}",
            hint="load it with a newer mrs",
        )
    try:
        return _chat(saved)
    except UsageError as error:
        raise _damaged(path, error.what) from error


def _chat(saved: dict[str, Any]) -> SavedChat:
    system, sampling = saved.get("system"), saved.get("sampling", {})
    if not (system is None or _is_text(system)):
        raise UsageError("its system prompt is not a text")
    if not isinstance(sampling, dict):
        raise UsageError("its sampling is not an object")
    settings, unknown = restored(sampling)
    given, title = saved.get("model"), saved.get("title")
    model_id = given if _is_text(given) else ""
    return SavedChat(
        model_id,
        system,
        settings,
        _turns(saved.get("messages", []), model_id),
        tuple(unknown),
        title if _is_text(title) else "",
    )


#: Which roles may follow each message.
_NEXT = {"reply": ("user",), "user": ("assistant",), "calls": ("tool",), "tool": ("assistant",)}


def _turns(messages: Any, model_id: str) -> list[ChatMessage]:
    """The messages; `model_id` gave the replies that name no model, as older files have them."""
    if not isinstance(messages, list):
        raise UsageError("its messages are not a list")
    turns: list[ChatMessage] = []
    last, open_calls = "reply", 0
    for number, message in enumerate(messages, 1):
        role = message.get("role") if isinstance(message, dict) else None
        if role not in _NEXT[last]:
            raise UsageError(f"message {number} is not from the {_NEXT[last][0]}")
        turns.append(_turn(message, role, number))
        if role == "assistant":
            if model_id:
                turns[-1].setdefault("model", model_id)
            open_calls = len(turns[-1].get("tool_calls", ()))
            last = "calls" if open_calls else "reply"
        else:
            open_calls -= role == "tool"
            last = "calls" if open_calls else role
    if last != "reply":
        raise UsageError("its last message has no reply")
    return turns


def _turn(message: dict[str, Any], role: str, number: int) -> ChatMessage:
    if not _is_text(message.get("content")):
        raise UsageError(f"message {number} has no text")
    turn: ChatMessage = {"role": role, "content": message["content"]}
    if thought := message.get("reasoning"):
        if not _is_text(thought) or role != "assistant":
            raise UsageError(f"the reasoning of message {number} is not that of a reply")
        turn["reasoning"] = thought
    if role == "assistant" and _is_text(model := message.get("model")) and model:
        turn["model"] = model
    if images := _images(message, number):
        turn["images"] = images
    if files := _list(message, "files", _file, number):
        turn["files"] = files
    if calls := _list(message, "tool_calls", _call, number):
        if role != "assistant":
            raise UsageError(f"the tool_calls of message {number} are not those of a reply")
        turn["tool_calls"] = calls
    if role == "tool":
        call_id, name = message.get("tool_call_id"), message.get("name")
        if not _is_text(call_id) or not _is_text(name):
            raise UsageError(f"message {number} does not name its tool and call")
        turn["tool_call_id"], turn["name"] = call_id, name
    return turn


def _to_json(turn: ChatMessage) -> dict[str, Any]:
    """The message with its images as data: URIs."""
    value = dict(turn)
    if images := turn.get("images"):
        value["images"] = list(map(to_data_uri, images))
    if files := turn.get("files"):
        value["files"] = [
            {"name": each.name, "text": each.text} | ({"pages": each.pages} if each.pages else {})
            for each in files
        ]
    return value


def _images(message: dict[str, Any], number: int) -> list[Media]:
    images = message.get("images", [])
    if not isinstance(images, list) or not all(map(_is_text, images)):
        raise UsageError(f"the images of message {number} are not a list of texts")
    if images and len(images) != message["content"].count(IMAGE_MARK):
        raise UsageError(f"the images of message {number} do not match its text")
    return list(map(read_media, images))


def _list(
    message: dict[str, Any], field: str, read: Callable[[Any], _Item | None], number: int
) -> list[_Item]:
    """The items of a list in a message, which `read` understands."""
    given = message.get(field, [])
    items = list(map(read, given)) if isinstance(given, list) else [None]
    known = [each for each in items if each is not None]
    if len(known) < len(items):
        raise UsageError(f"the {field} of message {number} are damaged")
    return known


def _file(given: Any) -> TextFile | None:
    match given:
        case {"name": str(name), "text": str(text)} if _is_text(name) and _is_text(text):
            pages = given.get("pages", 0)
            return TextFile(name, text, pages if type(pages) is int and pages > 0 else 0)
    return None


def _call(given: Any) -> ToolCallMessage | None:
    match given:
        case {"id": str(call_id), "name": str(name), "arguments": str(arguments)}:
            if all(map(_is_text, (call_id, name, arguments))):
                return ToolCallMessage(id=call_id, name=name, arguments=arguments)
    return None


def _is_text(value: Any) -> TypeGuard[str]:
    """Whether `value` is a text that can be encoded: JSON can contain half a character."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_saved_chat(path: Path) -> bool:
    try:
        return _read(path).get("format") == FORMAT
    except UsageError:
        return False


def _read(path: Path) -> dict[str, Any]:
    import json

    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise UsageError(f"{path} is not a file")
        value = json.loads(read_at_most(path, MAX_FILE_BYTES))
    except OSError as error:
        raise UsageError(f"{path} cannot be read", where=error.strerror or "") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is damaged, or not a saved chat", where="not JSON") from error
    if not isinstance(value, dict):
        raise UsageError(f"{path} is not a saved chat")
    return value


def _damaged(path: Path, how: str) -> UsageError:
    return UsageError(f"{path} is a damaged chat file", where=how)


def path_of(name: str) -> Path:
    """The path that a person typed. Raises UsageError."""
    if "\0" in name:
        raise UsageError("the file name contains a zero byte")
    try:
        return Path(name).expanduser()
    except RuntimeError as error:  # ~name of an unknown user
        raise UsageError(f"{name} is not a valid path", where=str(error)) from error
