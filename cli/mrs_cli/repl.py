"""The interactive chat, on any screen."""

from __future__ import annotations

from mrs.errors import ExitCode, MrsError, Unsupported, UsageError
from mrs_cli import commands
from mrs_cli.screen import Screen
from mrs_cli.session import Session


def chat(session: Session, screen: Screen, first: str | None = None) -> ExitCode:
    """Asks `first`, then what `screen` reads, until there is no more.

    Nobody attends a pipe: there an error, or Ctrl-C during a reply, ends the chat.
    """
    if not session.model.has_chat_template:
        raise Unsupported(
            "the model has no chat template", hint="give one with --chat-template FILE"
        )
    state = commands.Chat(session, pending=first)
    screen.greet(session.model.summary)
    while state.open:
        text, state.pending = state.pending, None
        if text is not None:
            screen.echo(text)
        elif (text := screen.read()) is None:
            break
        if command := commands.parse(text):
            _obey(state, screen, *command)
        elif text.strip():
            _answer(session, screen, text)
    return ExitCode.DONE


def _obey(state: commands.Chat, screen: Screen, name: str, argument: str) -> None:
    try:
        if note := commands.run(state, name, argument):
            screen.note(note)
    except UsageError as error:
        screen.error(error)


def _answer(session: Session, screen: Screen, text: str) -> None:
    try:
        reply = session.ask(text, screen.show)
    except MrsError as error:
        if not screen.attended:
            raise
        screen.error(error)
        return
    screen.statistics(reply)
    if reply.reason == "cancelled" and not screen.attended:
        raise KeyboardInterrupt
