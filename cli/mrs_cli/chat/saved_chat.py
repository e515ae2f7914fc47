"""Conversations in files.

A file is one JSON object: `format` is `mrs-chat`, and `version` counts incompatible changes. All
other fields may be missing, and unknown fields are ignored. So a newer program reads every older
file, and an older program reads a newer file if it knows the `version`.
"""

from __future__ import annotations

import stat
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeGuard

from mrs.errors import UsageError
from mrs.media.read_media import read_media, to_data_uri
from mrs.process.files import read_at_most, replace_file
from mrs.request import IMAGE_MARK, Media, Message, Sampling
from mrs_cli.chat.chat_settings import restored, to_json
from mrs_cli.render.safe_text import json_text

FORMAT = "mrs-chat"
VERSION = 1
#: A larger file is no chat of texts that a person has read.
MAX_FILE_BYTES = 64 * 1024**2
ROLES = ("user", "assistant")


@dataclass(frozen=True)
class SavedChat:
    """`turns` are alternating messages of user and assistant."""

    model_id: str
    system: str | None
    sampling: Sampling
    turns: list[Message]
    unknown_settings: tuple[str, ...] = ()


def save(chat: SavedChat, name: str) -> Path:
    """Writes a file that only the owner may read, and returns its path.

    Replaces saved chats, but no other files. Raises UsageError.
    """
    path = _path(name)
    text = json_text(
        {
            "format": FORMAT,
            "version": VERSION,
            "saved": datetime.now(UTC).isoformat(timespec="seconds"),
            "model": chat.model_id,
            "system": chat.system,
            "sampling": to_json(chat.sampling),
            "messages": list(map(_to_json, chat.turns)),
        },
        indent=2,
    )
    try:
        if path.exists() and not _is_saved_chat(path):
            raise UsageError(f"{path} exists and is not a saved chat", hint="give another name")
        replace_file(path.resolve(), [(text + "\n").encode("utf-8", "replace")])
    except OSError as error:
        raise UsageError(f"{path} cannot be written", where=error.strerror or "") from error
    return path


def load(name: str) -> SavedChat:
    """What `save` wrote; UsageError if the file is missing, damaged or not a saved chat.

    Raises NotReadable for an image that a person has put into it by its name.
    """
    path = _path(name)
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
    model_id = saved.get("model")
    return SavedChat(
        model_id if _is_text(model_id) else "",
        system,
        settings,
        _turns(saved.get("messages", [])),
        tuple(unknown),
    )


def _turns(messages: Any) -> list[Message]:
    if not isinstance(messages, list):
        raise UsageError("its messages are not a list")
    turns: list[Message] = []
    for number, message in enumerate(messages):
        role = ROLES[number % 2]
        if not isinstance(message, dict) or message.get("role") != role:
            raise UsageError(f"message {number + 1} is not from the {role}")
        if not _is_text(message.get("content")):
            raise UsageError(f"message {number + 1} has no text")
        turn: Message = {"role": role, "content": message["content"]}
        if thought := message.get("reasoning"):
            if not _is_text(thought) or role != "assistant":
                raise UsageError(f"the reasoning of message {number + 1} is not that of a reply")
            turn["reasoning"] = thought
        if images := _images(message, number + 1):
            turn["images"] = images
        turns.append(turn)
    if len(turns) % 2:
        raise UsageError("its last message has no reply")
    return turns


def _to_json(turn: Message) -> dict[str, Any]:
    """The message with its images as data: URIs."""
    if not turn.get("images"):
        return dict(turn)
    return {**turn, "images": list(map(to_data_uri, turn["images"]))}


def _images(message: dict[str, Any], number: int) -> list[Media]:
    images = message.get("images", [])
    if not isinstance(images, list) or not all(map(_is_text, images)):
        raise UsageError(f"the images of message {number} are not a list of texts")
    if images and len(images) != message["content"].count(IMAGE_MARK):
        raise UsageError(f"the images of message {number} do not match its text")
    return list(map(read_media, images))


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


def _path(name: str) -> Path:
    if "\0" in name:
        raise UsageError("the file name contains a zero byte")
    try:
        return Path(name).expanduser()
    except RuntimeError as error:  # ~name of an unknown user
        raise UsageError(f"{name} is not a valid path", where=str(error)) from error
