"""Commands of sessions: list, open, fork, name, export and delete them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from mrs.errors import UsageError
from mrs.request.sampling import SETTINGS
from mrs.source.address import model_name
from mrs_cli.chat.chat_images import count_images
from mrs_cli.chat.chat_message import shortened
from mrs_cli.chat.chat_settings import SAVED, to_json
from mrs_cli.chat.chat_state import ChatState
from mrs_cli.chat.export import export
from mrs_cli.chat.saved_chat import SavedChat, load
from mrs_cli.chat.session import Session
from mrs_cli.chat.session_store import (
    MAX_LISTED,
    SessionFile,
    StoredSession,
    delete_session,
    find_session,
    list_of,
    stored_sessions,
)


def list_sessions(chat: ChatState, words: str) -> str:
    shown, text = list_of(words)
    chat.listed = [each.stored for each in shown]
    return text


def open_session(chat: ChatState, name: str) -> str:
    """Replaces the conversation, its system prompt and its settings."""
    if not name:
        raise UsageError("\\open needs a session or a file", hint="\\sessions lists the sessions")
    if _is_file(name):
        file, saved = SessionFile(), load(name)
    else:
        stored = _named(chat, name)
        saved = stored.load()
        file = SessionFile.of(stored, saved)
    session = chat.session
    session.system = saved.system
    # What a chat cannot set, such as a grammar, is not in the file and stays.
    session.sampling = replace(session.sampling, **to_json(saved.sampling))
    session.chosen_by = dict.fromkeys(SETTINGS, SAVED)
    return resumed(session, saved, file)


def resumed(session: Session, saved: SavedChat, file: SessionFile) -> str:
    """Continues a saved chat, and describes it."""
    session.resume(saved.turns)
    session.title, session.file = saved.given_title, file
    model = model_name(saved.model_id) if saved.model_id else "an unknown model"
    lines = [f"{_turns(saved.num_turns)} loaded, from a chat with {model}"]
    if saved.turns:
        lines.append(f"last message: {shortened(session.last_question().typed)}")
    if unseen := unseen_images(session):
        lines.append(unseen)
    if saved.unknown_settings:
        lines.append(f"unknown settings, ignored: {', '.join(saved.unknown_settings)}")
    return "\n".join(lines)


def unseen_images(session: Session) -> str:
    """What a person is told of images that the model cannot see; empty without any."""
    if count_images(session.turns) and session.vision is None:
        return "this model has no vision support: it gets the text without the images"
    return ""


def new(chat: ChatState, _: str) -> str:
    kept = chat.session.file.stored
    chat.session.clear()
    return "new session" if kept is None else "new session; \\sessions lists the earlier ones"


def fork(chat: ChatState, title: str) -> str:
    session = chat.session
    if not session.turns:
        raise UsageError("there is no message yet", hint="a fork copies a conversation")
    session.title = title or f"{session.saved.title} (fork)"
    session.file = SessionFile()
    return f"this is now the session {shortened(session.title)}; the other one stays as it is"


def title(chat: ChatState, text: str) -> str:
    session = chat.session
    if not text:
        return f"title is {shortened(session.saved.title) or 'that of the first message'}"
    session.title = shortened(text, _TITLE_CHARACTERS)
    return f"title is now {shortened(session.title)}"


_TITLE_CHARACTERS = 200


def delete(chat: ChatState, name: str) -> str:
    if not name:
        raise UsageError("\\delete needs a session", hint="\\sessions lists them with numbers")
    stored = _named(chat, name)
    label = shortened(stored.listed().title)
    if not chat.confirm(f"Delete the session {label}?"):
        return "nothing was deleted"
    delete_session(stored)
    if chat.session.file.stored is not None and chat.session.file.stored.id == stored.id:
        chat.session.clear()
        return f"deleted: {label}; this is a new session"
    return f"deleted: {label}"


def export_session(chat: ChatState, name: str) -> str:
    if not name:
        raise UsageError("\\export needs a file name", hint="such as \\export chat.md")
    path = export(chat.session.saved, name)
    return f"{_turns(chat.session.saved.num_turns)} saved to {path}"


def _is_file(name: str) -> bool:
    """Whether a name means a file and not a session."""
    return Path(name).suffix.lower() == ".json" or "/" in name or "\\" in name


def _named(chat: ChatState, name: str) -> StoredSession:
    """The session of this number, id or title. UsageError if there is none."""
    if not name.isdecimal() or len(name) > len(str(MAX_LISTED)):
        return find_session(name)
    listed = chat.listed or stored_sessions()[:MAX_LISTED]
    if not 1 <= int(name) <= len(listed):
        raise UsageError(f"there is no session {name}", hint="\\sessions lists them with numbers")
    return listed[int(name) - 1]


def _turns(count: int) -> str:
    return f"{count} {'turn' if count == 1 else 'turns'}"
