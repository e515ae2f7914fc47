"""The sessions of a person: each chat has a file, which is kept until its owner deletes it."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path

from mrs.errors import MrsError, UsageError
from mrs.process.files import PRIVATE, replace_file
from mrs.request import text_of
from mrs.source.address import model_name
from mrs_cli.chat.chat_message import shortened
from mrs_cli.chat.chat_settings import to_json
from mrs_cli.chat.saved_chat import SavedChat, load, to_file
from mrs_cli.chat.state_folder import state_folder
from mrs_cli.render.safe_text import one_line, table

#: A list of sessions shows the newest; words find the others.
MAX_LISTED = 30

_MODEL_COLUMNS = 20
#: Of a line in the list of sessions, without the title.
_OTHER_COLUMNS = 41 + _MODEL_COLUMNS
_LEAST_TITLE_COLUMNS, _MOST_TITLE_COLUMNS = 12, 40
_MOST_COLUMNS = _OTHER_COLUMNS + _MOST_TITLE_COLUMNS


@dataclass(frozen=True)
class StoredSession:
    """A session's file; `changed_s` is when it was written, in seconds since 1970."""

    path: Path
    changed_s: float

    @property
    def id(self) -> str:
        return self.path.stem

    def load(self) -> SavedChat:
        """Raises UsageError for a damaged file, and NotReadable for an image in it."""
        return load(str(self.path))

    def listed(self) -> ListedSession:
        """What a list tells of it."""
        chat = None
        with suppress(MrsError):
            chat = self.load()
        return ListedSession(self, chat)


@dataclass(frozen=True)
class ListedSession:
    """What a list tells of a session; `chat` is None if its file cannot be read."""

    stored: StoredSession
    chat: SavedChat | None

    @property
    def title(self) -> str:
        return "(damaged)" if self.chat is None else one_line(self.chat.title)


def stored_sessions() -> list[StoredSession]:
    """All sessions, the last one that was written first; none if the folder cannot be read."""
    found = []
    with suppress(OSError):
        for path in _folder().glob("*.json"):
            with suppress(OSError):  # deleted meanwhile
                found.append(StoredSession(path, path.stat().st_mtime))
    return sorted(found, key=lambda each: (each.changed_s, each.id), reverse=True)


def listed_sessions(words: str = "") -> Iterator[ListedSession]:
    """The sessions that have all of `words` in their titles or messages, newest first."""
    wanted = words.casefold().split()
    for stored in stored_sessions():
        listed = stored.listed()
        if not wanted or all(word in _searched(listed) for word in wanted):
            yield listed


def last_session() -> StoredSession:
    """The session that was written last. UsageError if there is none."""
    if sessions := stored_sessions():
        return sessions[0]
    raise UsageError("there is no chat to continue", hint="leave out --continue")


def find_session(name: str) -> StoredSession:
    """The session of this id or this title. UsageError if there is none, or more than one."""
    sessions = stored_sessions()
    if by_id := [each for each in sessions if each.id == name]:
        return by_id[0]
    title = one_line(name).casefold()
    by_title = [each.stored for each in listed_sessions() if each.title.casefold() == title]
    if len(by_title) > 1:
        ids = ", ".join(each.id for each in by_title)
        raise UsageError(
            f"{len(by_title)} sessions have the title {name}", hint=f"choose by id: {ids}"
        )
    if not by_title:
        raise UsageError(f"there is no session {name}", hint="mrs sessions lists them")
    return by_title[0]


def delete_session(stored: StoredSession) -> None:
    """Raises UsageError if the file cannot be deleted; one that is gone is fine."""
    try:
        stored.path.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"{stored.path} cannot be deleted", where=error.strerror or "") from error


def sessions_table(sessions: Sequence[ListedSession]) -> list[str]:
    """A line for each session, with numbers from 1. Titles leave room for the rest of a line."""
    rows = [("", "title", "turns", "model", "changed", "id")]
    columns = shutil.get_terminal_size(fallback=(_MOST_COLUMNS, 0)).columns
    title_columns = min(max(columns - _OTHER_COLUMNS, _LEAST_TITLE_COLUMNS), _MOST_TITLE_COLUMNS)
    for number, each in enumerate(sessions, 1):
        changed = datetime.fromtimestamp(each.stored.changed_s).strftime("%Y-%m-%d %H:%M")
        model = each.chat and shortened(model_name(each.chat.model_id), _MODEL_COLUMNS)
        turns = "" if each.chat is None else str(each.chat.num_turns)
        title = shortened(each.title, title_columns)
        rows.append((str(number), title, turns, model or "", changed, each.stored.id))
    return table(rows, right={0, 2})


def list_of(words: str) -> tuple[list[ListedSession], str]:
    """The sessions to list, and the text of the list."""
    found = listed_sessions(words)
    shown = list(islice(found, MAX_LISTED))
    if not shown:
        return [], f"no session has the words {words}" if words else "there is no session yet"
    lines = sessions_table(shown)
    if more := sum(1 for _ in found) if words else len(stored_sessions()) - len(shown):
        lines.append(f"and {more:,} more: words after the command search all")
    return shown, "\n".join(lines)


@dataclass
class SessionFile:
    """The file of an open chat; `stored` is None until something is kept.

    It remembers what it wrote, so that it never replaces what another chat has written since.
    """

    stored: StoredSession | None = None
    _stamp: tuple[int, int] | None = None
    _kept: SavedChat | None = None
    _has_failed: bool = False

    @classmethod
    def of(cls, stored: StoredSession, saved: SavedChat) -> SessionFile:
        """The file of a session that was read from it."""
        return cls(stored, _stamp(stored.path), saved)

    def keep(self, chat: SavedChat) -> str:
        """Writes what has changed since the last time; returns what to tell the person.

        A chat without messages has no file.
        """
        if not self._has_changed(chat):
            return ""
        try:
            if chat.turns:
                return self._write(chat)
            self._delete()
        except (OSError, UsageError) as error:
            if self._has_failed:
                return ""
            self._has_failed = True
            reason = error.what if isinstance(error, UsageError) else error.strerror
            return f"this session is not kept: {reason}"
        return ""

    def _has_changed(self, chat: SavedChat) -> bool:
        if self._kept is None:
            return bool(chat.turns)
        return _content(chat) != _content(self._kept)

    def _write(self, chat: SavedChat) -> str:
        content, folder = to_file(chat), _folder()
        with _lock():
            old = self.stored
            is_foreign = old is not None and _stamp(old.path) not in (None, self._stamp)
            path = _new_path(folder) if old is None or is_foreign else old.path
            replace_file(path, [content])
            self.stored, self._stamp = StoredSession(path, path.stat().st_mtime), _stamp(path)
        self._kept, self._has_failed = chat, False
        if not is_foreign:
            return ""
        return f"another chat continued this session, so this one goes on as {path.stem}"

    def _delete(self) -> None:
        if self.stored is not None:
            delete_session(self.stored)
        self.stored = self._kept = None


def _content(chat: SavedChat) -> tuple[object, ...]:
    """What a person may have changed."""
    return chat.turns, chat.given_title, chat.system, to_json(chat.sampling)


def _searched(listed: ListedSession) -> str:
    if listed.chat is None:
        return ""
    return "\n".join([listed.title, *map(text_of, listed.chat.turns)]).casefold()


def _folder() -> Path:
    """The folder of the sessions, which is created if it is missing. Raises OSError."""
    folder = state_folder() / "chats"
    folder.mkdir(exist_ok=True, mode=0o700)
    return folder


def _new_path(folder: Path) -> Path:
    while (path := folder / f"{secrets.token_hex(4)}.json").exists():
        pass
    return path


def _stamp(path: Path) -> tuple[int, int] | None:
    """Tells one content of a file from the next, which is another file of that name."""
    try:
        facts = path.stat()
    except FileNotFoundError:
        return None
    return facts.st_mtime_ns, facts.st_ino


@contextmanager
def _lock() -> Iterator[None]:
    """One chat writes at a time, where the system has such locks. Raises OSError."""
    handle = os.open(state_folder() / "chats.lock", os.O_RDWR | os.O_CREAT, PRIVATE)
    try:
        with suppress(ImportError):  # Windows
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
