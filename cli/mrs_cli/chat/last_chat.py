"""The last chats, saved when they end, so that `--continue` can resume the last one."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from mrs.errors import UsageError
from mrs.request import Message, text_of
from mrs_cli.chat.saved_chat import SavedChat, load, save
from mrs_cli.chat.state_folder import state_folder

MAX_CHATS = 20
#: Images can make a chat large; a larger one is not saved.
MAX_CHAT_BYTES = 16 * 1024**2


def last_chat() -> SavedChat:
    """The chat that ended last. UsageError if there is none, or if it cannot be read."""
    with suppress(OSError):
        if chats := _chats(state_folder() / "chats"):
            return load(str(chats[-1]))
    raise UsageError("there is no chat to continue", hint="leave out --continue")


def save_last(chat: SavedChat) -> None:
    """Saves the chat and deletes the oldest ones; errors are ignored."""
    if not chat.turns or sum(map(_bytes, chat.turns)) > MAX_CHAT_BYTES:
        return
    name = datetime.now(UTC).strftime("%Y-%m-%dT%H-%M-%S-%f.json")
    with suppress(OSError, UsageError):
        folder = state_folder() / "chats"
        folder.mkdir(exist_ok=True, mode=0o700)
        save(chat, str(folder / name))
        for path in _chats(folder)[:-MAX_CHATS]:
            path.unlink()


def _chats(folder: Path) -> list[Path]:
    """The files in the folder, oldest first: their names are times."""
    return sorted(folder.glob("*.json"))


def _bytes(turn: Message) -> int:
    """About what the turn takes in its file, in which images are in base64."""
    images = sum(len(media.content) for media in turn.get("images", ()))
    return len(text_of(turn)) + len(turn.get("reasoning", "")) + images * 4 // 3
