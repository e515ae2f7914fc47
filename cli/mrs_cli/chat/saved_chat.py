"""Conversations in files.

A file is one JSON object: `format` is `mrs-chat`, `version` counts changes that older programs
could not read, and everything else may be missing or unknown. So a newer program reads every older
file, and an older one reads a newer file as long as `version` is one that it knows.
"""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeGuard

from mrs.errors import UsageError
from mrs.request import IMAGE_MARK, Message, Sampling
from mrs_cli.chat.chat_settings import restored, to_json
from mrs_cli.render.safe_text import json_text

FORMAT = "mrs-chat"
VERSION = 1
ROLES = ("user", "assistant")


@dataclass(frozen=True)
class SavedChat:
    """`turns` are the user's and the assistant's messages in turn."""

    model_id: str
    system: str | None
    sampling: Sampling
    turns: list[Message]
    unknown_settings: tuple[str, ...] = ()


def save(chat: SavedChat, name: str) -> Path:
    """Writes a file that only the owner may read: whole, or not at all.

    Only a saved chat is replaced. Raises UsageError.
    """
    path = _path(name)
    text = json_text(
        {
            "format": FORMAT,
            "version": VERSION,
            "saved": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "model": chat.model_id,
            "system": chat.system,
            "sampling": to_json(chat.sampling),
            "messages": chat.turns,
        },
        indent=2,
    )
    try:
        if path.exists() and not _is_saved_chat(path):
            raise UsageError(f"{path} exists and is no saved chat", hint="give another name")
        _replace(path, (text + "\n").encode("utf-8", "replace"))
    except OSError as error:
        raise UsageError(f"{path} cannot be written", where=error.strerror or "") from error
    return path


def load(name: str) -> SavedChat:
    """What `save` wrote; UsageError for a file that is missing, damaged or something else."""
    path = _path(name)
    saved = _read(path)
    if saved.get("format") != FORMAT:
        raise UsageError(f"{path} is no saved chat")
    version = saved.get("version")
    if type(version) is not int or version < 1:
        raise _damaged(path, "it has no version")
    if version > VERSION:
        raise UsageError(
            f"{path} is of version {version}, and this mrs reads up to {VERSION}",
            hint="load it with a newer mrs",
        )
    try:
        return _chat(saved)
    except UsageError as error:
        raise _damaged(path, error.what) from error


def _chat(saved: dict[str, Any]) -> SavedChat:
    system, sampling = saved.get("system"), saved.get("sampling", {})
    if not (system is None or _is_text(system)):
        raise UsageError("its system prompt is no text")
    if not isinstance(sampling, dict):
        raise UsageError("its sampling is no object")
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
        raise UsageError("its messages are no list")
    turns: list[Message] = []
    for number, message in enumerate(messages):
        role = ROLES[number % 2]
        if not isinstance(message, dict) or message.get("role") != role:
            raise UsageError(f"message {number + 1} is not the {role}'s")
        if not _is_text(message.get("content")):
            raise UsageError(f"message {number + 1} holds no text")
        turn: Message = {"role": role, "content": message["content"]}
        if images := _images(message, number + 1):
            turn["images"] = images
        turns.append(turn)
    if len(turns) % 2:
        raise UsageError("its last message has no reply")
    return turns


def _images(message: dict[str, Any], number: int) -> list[str]:
    images = message.get("images", [])
    if not isinstance(images, list) or not all(map(_is_text, images)):
        raise UsageError(f"the images of message {number} are no list of texts")
    if images and len(images) != message["content"].count(IMAGE_MARK):
        raise UsageError(f"the images of message {number} have other places")
    return images


def _is_text(value: Any) -> TypeGuard[str]:
    """Whether `value` is a text that can be encoded: JSON can spell half a character."""
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
            raise UsageError(f"{path} is no file")
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise UsageError(f"{path} cannot be read", where=error.strerror or "") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is no saved chat, or a damaged one", where="no JSON") from error
    if not isinstance(value, dict):
        raise UsageError(f"{path} is no saved chat")
    return value


def _damaged(path: Path, how: str) -> UsageError:
    return UsageError(f"{path} is a damaged chat", where=how)


def _path(name: str) -> Path:
    if "\0" in name:
        raise UsageError("the file's name holds a zero byte")
    try:
        return Path(name).expanduser()
    except RuntimeError as error:  # ~somebody who does not exist
        raise UsageError(f"{name} names no folder", where=str(error)) from error


def _replace(path: Path, content: bytes) -> None:
    """Puts `content` in the place of the file, or of the one that a link leads to."""
    path = path.resolve()
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(temporary).unlink()
        raise
