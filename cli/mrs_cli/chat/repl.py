"""The interactive chat, on any screen."""

from __future__ import annotations

from dataclasses import replace

from mrs.errors import ContextFull, ExitCode, MrsError, Unsupported, UsageError
from mrs_cli.chat.attachments import Attachments, described, leading_files, read_file
from mrs_cli.chat.chat_images import too_many_images, unseen_files, without_files
from mrs_cli.chat.chat_state import ChatState
from mrs_cli.chat.command_table import is_farewell, parse_command, run_command
from mrs_cli.chat.multiline_text import unquoted
from mrs_cli.chat.question import Question
from mrs_cli.chat.screens.screen import Screen
from mrs_cli.chat.session import Session
from mrs_cli.render.reply_events import CompleteReply


def chat(state: ChatState, screen: Screen) -> ExitCode:
    """Asks what is pending, then what `screen` reads, until there is no more.

    A person's session is kept after each message and command. If no person is there, an error or
    Ctrl-C during a reply ends the chat.
    """
    session = state.session
    if not session.model.has_chat_template:
        raise Unsupported(
            "the model has no chat template", hint="give one with --chat-template FILE"
        )
    screen.greet(session.model.summary)
    while state.open and (question := _next(state, screen)) is not None:
        command = None if question.images else parse_command(question.text)
        if screen.attended and is_farewell(question.text):
            break
        if command:
            _run_command(state, screen, *command)
        elif (text := unquoted(question.text)).strip():
            _submit(state, screen, replace(question, text=_as_message(text)))
        if screen.attended and (note := session.keep()):
            screen.note(note)
    return ExitCode.DONE


def _next(state: ChatState, screen: Screen) -> Question | None:
    """The next question, or a command as its text."""
    pending, draft = state.pending, state.draft
    state.pending = state.draft = None
    if pending is not None:
        screen.echo(pending.typed)
        return pending
    text = _read(screen, draft.typed if draft else "")
    return None if text is None else (draft or Question("")).with_text(text)


def _read(screen: Screen, draft: str) -> str | None:
    """What a person types; a second Ctrl-C on an empty line leaves the chat."""
    try:
        return screen.read(draft)
    except KeyboardInterrupt:
        if not screen.attended:
            raise
    screen.note("press Ctrl-C again or Ctrl-D to leave")
    try:
        return screen.read()
    except KeyboardInterrupt:
        return None


def _as_message(text: str) -> str:
    """`text`, which stays a message if it looks like a command and is asked again."""
    return f" {text}" if parse_command(text) else text


def _run_command(state: ChatState, screen: Screen, name: str, argument: str) -> None:
    try:
        if note := run_command(state, name, argument):
            screen.note(note)
    except MrsError as error:
        screen.error(error)
    except KeyboardInterrupt:
        if not screen.attended:
            raise
        screen.note("stopped")


def _submit(state: ChatState, screen: Screen, question: Question) -> None:
    attached = None
    try:
        question = _with_files(state, screen, question)
        attached = _attached(state.session, screen, question)
        if attached is None:
            return
        reply = _asked(state.session, screen, attached)
    except MrsError as error:
        if not screen.attended:
            raise
        screen.error(error)
        if attached is None and screen.edits:
            state.draft = question  # to correct the name of an image
        return
    except KeyboardInterrupt:  # while a tool was called
        if not screen.attended:
            raise
        screen.note("stopped")
        return
    if state.verbose:
        screen.statistics(reply)
    if reply.reason == "cancelled" and not screen.attended:
        raise KeyboardInterrupt
    if _filled_context(state.session, reply):
        screen.note(
            f"the context of {state.session.model.context_tokens:,} tokens is full: "
            "\\new starts a new session, \\undo removes the last turn"
        )


def _with_files(state: ChatState, screen: Screen, question: Question) -> Question:
    """The question with what was attached to it, and with the files that it begins with.

    Only a person names files in a message. Raises MrsError.
    """
    paths: list[str] = []
    text = question.text
    if screen.attended and question.is_typed:
        paths, text = leading_files(question.text)
    named = list(map(read_file, paths))
    more, state.attached = state.attached, Attachments()
    files = (*question.files, *more.files, *named)
    images = (*question.images, *more.images)
    return replace(question, text=text, files=files, images=images)


def _attached(session: Session, screen: Screen, question: Question) -> Question | None:
    """The question with its images, which are listed; None if Ctrl-C stops reading them."""
    try:
        question = session.attach(question)
    except KeyboardInterrupt:
        if not screen.attended:
            raise
        screen.note("stopped")
        return None
    if question.images or question.files:
        screen.note(described(question.files, question.images))
    warn_of_images(session, screen, question)
    return question


def warn_of_images(session: Session, screen: Screen, question: Question) -> None:
    """Warns of more images than planned, of names of missing files, and of images not seen."""
    if question.unseen:
        screen.note(unseen_files(question.unseen))
    if question.missing:
        screen.note(without_files(question.missing))
    planned, count = session.vision, session.images_with(question)
    if planned is not None and question.images and count > planned.max_num_images:
        screen.note(too_many_images(count, planned.max_num_images, question.images[0].kind))


def _asked(session: Session, screen: Screen, question: Question) -> CompleteReply:
    try:
        return session.ask(question, screen.show)
    except ContextFull as error:
        _drop_turns(session, screen, question, error)
    return session.ask(question, screen.show)


def _drop_turns(session: Session, screen: Screen, question: Question, error: ContextFull) -> None:
    """Drops the oldest turns if the person agrees; otherwise UsageError says what to do."""
    surplus = session.surplus(question)
    if surplus is None:
        raise UsageError(error.what, hint="shorten the message") from error
    if not screen.attended:
        raise UsageError(
            error.what, hint="put \\new before this message, or \\undo for each turn to drop"
        ) from error
    turns = "the oldest turn" if surplus == 1 else f"the {surplus} oldest turns"
    if not screen.confirm(f"{error.what}.\nDrop {turns}?"):
        raise UsageError(
            "the message was not sent",
            hint="\\edit changes it, \\new starts a new session, \\undo removes a turn",
        ) from error
    session.drop(surplus)


def _filled_context(session: Session, reply: CompleteReply) -> bool:
    usage = reply.usage
    return (
        reply.reason == "length"
        and usage is not None
        and usage.prompt_tokens + usage.completion_tokens >= session.model.context_tokens
    )
