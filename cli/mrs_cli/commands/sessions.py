"""`mrs sessions`: lists the sessions of chats."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from mrs.errors import ExitCode
from mrs_cli.chat.session_store import ListedSession, list_of, listed_sessions
from mrs_cli.environment import Environment
from mrs_cli.parsing.flags.command_flags import OutputFlags
from mrs_cli.render.safe_text import json_text, printable


def list_sessions(environment: Environment, output: OutputFlags, words: Sequence[str]) -> ExitCode:
    """Prints the sessions that have all of the words, newest first; as JSON all of them."""
    wanted = " ".join(words)
    if output.json:
        text = json_text({"sessions": list(map(_to_json, listed_sessions(wanted)))})
    else:
        text = printable(list_of(wanted)[1])
    environment.stdout.write(text + "\n")
    return ExitCode.DONE


def _to_json(listed: ListedSession) -> dict[str, object]:
    changed = datetime.fromtimestamp(listed.stored.changed_s, UTC)
    return {
        "id": listed.stored.id,
        "title": listed.title,
        "model": None if listed.chat is None else listed.chat.model_id,
        "turns": None if listed.chat is None else listed.chat.num_turns,
        "changed": changed.isoformat(timespec="seconds"),
    }
