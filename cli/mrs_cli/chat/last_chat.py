"""Chats that are kept when they end, so that the last one can go on."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path

from mrs.errors import UsageError
from mrs.request import Message
from mrs_cli.chat.saved_chat import SavedChat, load, save
from mrs_cli.chat.state_folder import state_folder

MOST_CHATS = 20
#: Pictures make a chat large; a larger one is not kept.
MOST_BYTES = 16 * 1024**2


def last_chat() -> SavedChat:
    """The chat that ended last. UsageError where there is none, or where it cannot be read."""
    with suppress(OSError):
        if chats := _chats(state_folder() / "chats"):
            return load(str(chats[-1]))
    raise UsageError("there is no chat to go on with", hint="leave out --continue")


def keep(chat: SavedChat) -> None:
    """Writes the chat and drops the oldest ones; where that fails, nothing is kept."""
    if not chat.turns or sum(map(_bytes, chat.turns)) > MOST_BYTES:
        return
    name = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H-%M-%S-%f.json")
    with suppress(OSError, UsageError):
        folder = state_folder() / "chats"
        folder.mkdir(exist_ok=True, mode=0o700)
        save(chat, str(folder / name))
        for path in _chats(folder)[:-MOST_CHATS]:
            path.unlink()


def _chats(folder: Path) -> list[Path]:
    """The files of the folder, the oldest first: their names begin with the time."""
    return sorted(folder.glob("*.json"))


def _bytes(turn: Message) -> int:
    return len(turn["content"]) + sum(map(len, turn.get("images", ())))
