"""What the commands of a chat change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mrs_cli.chat.attachments import Attachments
from mrs_cli.chat.question import Question
from mrs_cli.chat.session import Session
from mrs_cli.chat.session_store import StoredSession


def _agree(question: str) -> bool:
    return True


@dataclass
class ChatState:
    """The chat ends when `open` is false. If it is `verbose`, statistics follow each reply.

    `pending` is asked next. `draft` is put into the editor, for the person to change; this needs a
    screen that `edits`. `attached` goes with the next message. `listed` are the sessions by the
    numbers that a person was shown last. `confirm` asks the person, `switch_model` loads another
    model into the session and describes it.
    """

    session: Session
    edits: bool = False
    verbose: bool = False
    pending: Question | None = None
    draft: Question | None = None
    open: bool = True
    attached: Attachments = field(default_factory=Attachments)
    listed: Sequence[StoredSession] = ()
    confirm: Callable[[str], bool] = _agree
    switch_model: Callable[[str], str] | None = None
