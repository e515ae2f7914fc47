"""The interactive chat, on any screen."""

from __future__ import annotations

from dataclasses import replace

from mrs.errors import ContextFull, ExitCode, MrsError, Unsupported, UsageError
from mrs_cli.chat import command_table as commands
from mrs_cli.chat.chat_images import described, too_many
from mrs_cli.chat.command_table import Chat
from mrs_cli.chat.multiline_text import unquoted
from mrs_cli.chat.screens.screen import Screen
from mrs_cli.chat.session import Question, Reply, Session


def chat(session: Session, screen: Screen, first: Question | None = None) -> ExitCode:
    """Asks `first`, then what `screen` reads, until there is no more.

    Nobody attends a pipe: there an error, or Ctrl-C during a reply, ends the chat.
    """
    if not session.model.has_chat_template:
        raise Unsupported(
            "the model has no chat template", hint="give one with --chat-template FILE"
        )
    state = Chat(session, edits=screen.edits, pending=first)
    screen.greet(session.model.summary)
    while state.open and (question := _next(state, screen)) is not None:
        if command := commands.parse(question.text):
            _obey(state, screen, *command)
        elif (text := unquoted(question.text)).strip():
            _answer(state, screen, replace(question, text=_no_command(text)))
    return ExitCode.DONE


def _next(state: Chat, screen: Screen) -> Question | None:
    """What is asked next, or a command."""
    pending, draft = state.pending, state.draft
    state.pending = state.draft = None
    if pending is not None:
        screen.echo(pending.typed)
        return pending
    text = _read(screen, draft.typed if draft else "")
    return None if text is None else (draft or Question("")).with_text(text)


def _read(screen: Screen, draft: str) -> str | None:
    """What a person types; where nothing is typed it takes a second Ctrl-C to leave."""
    try:
        return screen.read(draft)
    except KeyboardInterrupt:
        if not screen.attended:
            raise
    screen.note("Ctrl-C again leaves, and so does Ctrl-D")
    try:
        return screen.read()
    except KeyboardInterrupt:
        return None


def _no_command(text: str) -> str:
    """A message that looks like a command, as it is when it is asked again."""
    return f" {text}" if commands.parse(text) else text


def _obey(state: Chat, screen: Screen, name: str, argument: str) -> None:
    try:
        if note := commands.run(state, name, argument):
            screen.note(note)
    except MrsError as error:
        screen.error(error)


def _answer(state: Chat, screen: Screen, question: Question) -> None:
    session, attached = state.session, None
    try:
        attached = _attached(session, screen, question)
        if attached is None:
            return
        reply = _asked(session, screen, attached)
    except MrsError as error:
        if not screen.attended:
            raise
        screen.error(error)
        if attached is None and screen.edits:
            state.draft = question  # with a name to mend
        return
    screen.statistics(reply)
    if reply.reason == "cancelled" and not screen.attended:
        raise KeyboardInterrupt
    if _filled_context(session, reply):
        screen.note(
            f"the context of {session.model.context_tokens:,} tokens is full: "
            "\\clear starts over, \\undo takes the last turn back"
        )


def _attached(session: Session, screen: Screen, question: Question) -> Question | None:
    """The question with its pictures, which are shown; None where Ctrl-C stops their coming."""
    try:
        question = session.attach(question)
    except KeyboardInterrupt:
        if not screen.attended:
            raise
        screen.note("stopped")
        return None
    if question.images:
        screen.note(described(question.images))
        warn_of_images(session, screen, question)
    return question


def warn_of_images(session: Session, screen: Screen, question: Question) -> None:
    """Says where a conversation has more images than the plan counts with."""
    planned, images = session.vision, session.images_with(question)
    if planned is not None and question.images and images > planned.max_num_images:
        screen.note(too_many(images, planned.max_num_images))


def _asked(session: Session, screen: Screen, question: Question) -> Reply:
    try:
        return session.ask(question, screen.show)
    except ContextFull as error:
        _make_room(session, screen, question, error)
    return session.ask(question, screen.show)


def _make_room(session: Session, screen: Screen, question: Question, error: ContextFull) -> None:
    """Drops the oldest turns where the person agrees, else says what to do."""
    surplus = session.surplus(question)
    if surplus is None:
        raise UsageError(error.what, hint="shorten the message") from error
    if not screen.attended:
        raise UsageError(
            error.what, hint="put \\clear before this message, or \\undo for each turn to drop"
        ) from error
    turns = "the oldest turn" if surplus == 1 else f"the {surplus} oldest turns"
    if not screen.confirm(f"{error.what}.\nDrop {turns}?"):
        raise UsageError(
            "the message was not asked",
            hint="\\edit shortens it, \\clear forgets the conversation, \\undo its last turn",
        ) from error
    session.drop(surplus)


def _filled_context(session: Session, reply: Reply) -> bool:
    usage = reply.usage
    return (
        reply.reason == "length"
        and usage is not None
        and usage.prompt_tokens + usage.completion_tokens >= session.model.context_tokens
    )
