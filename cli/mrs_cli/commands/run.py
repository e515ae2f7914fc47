"""One run: load the model, then chat or answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing

from mrs.errors import ExitCode, UsageError
from mrs_cli.chat.chat_commands import resumed
from mrs_cli.chat.chat_images import hold, typed
from mrs_cli.chat.last_chat import keep
from mrs_cli.chat.multiline_text import unquoted
from mrs_cli.chat.repl import chat, warn_of_images
from mrs_cli.chat.request_log import RequestLog
from mrs_cli.chat.screens.plain_screen import PlainScreen
from mrs_cli.chat.screens.screen import Screen
from mrs_cli.chat.screens.typed_ahead import without_echo
from mrs_cli.chat.session import Question, Session
from mrs_cli.commands.stdin_prompts import Begun, PipedLines, begun_ahead
from mrs_cli.environment import Environment
from mrs_cli.parsing.model_requests import Task
from mrs_cli.render.log_lines import listening
from mrs_cli.render.progress_bars import load_model


def run(environment: Environment, task: Task, *, stdin: bool) -> ExitCode:
    """Does what `task` says; `stdin` is whether `-` asked for standard input."""
    waits = not (task.interactive or stdin) and task.prompt is None
    if waits and environment.stdin.isatty():
        raise UsageError(
            "there is nothing to answer",
            hint='add -i to chat, --prompt "TEXT" to ask once, or pipe prompts in',
        )
    with ExitStack() as stack:
        stack.enter_context(listening(environment, quiet=task.quiet, verbose=task.verbose))
        log = None
        if task.log:
            log = stack.enter_context(
                closing(RequestLog.open(task.log, task.request.source.model_id))
            )
        first = _first(task)
        typed_ahead = None
        if task.interactive and environment.can_chat and not task.json:
            typed_ahead = stack.enter_context(without_echo(environment.stdin))
        model = load_model(environment, task.request, quiet=task.quiet)
        stack.callback(model.close)
        session = Session(
            model,
            task.sampling,
            task.system,
            log,
            model_id=task.request.source.model_id,
            vision=task.request.vision,
        )
        if task.interactive:
            return _chat(environment, task, session, first, typed_ahead)
        return _answer(environment, task, session, first)


def _first(task: Task) -> Question | None:
    """What the command line asks, with its pictures. Raises NotReadable."""
    if task.prompt is None:
        return None
    images = tuple(map(hold, task.images))
    return Question(typed(task.prompt, images), known=images)


def _answer(
    environment: Environment, task: Task, session: Session, first: Question | None
) -> ExitCode:
    """Answers each prompt on its own, in order."""
    screen = PlainScreen(environment, json=task.json, quiet=task.quiet, statistics=task.verbose > 0)
    asked = False
    for prompt, begun in _prompts(environment, task, session, screen, first):
        asked = True
        session.forget()
        prompt = session.attach(prompt)
        warn_of_images(session, screen, prompt)
        reply = session.ask(prompt, screen.show, begun)
        screen.statistics(reply)
        if reply.reason == "cancelled":
            raise KeyboardInterrupt
    if not asked:
        raise UsageError(
            "standard input held no prompt", hint="pipe prompts in, one a line, or use --prompt"
        )
    return ExitCode.DONE


def _prompts(
    environment: Environment,
    task: Task,
    session: Session,
    screen: PlainScreen,
    first: Question | None,
) -> Iterator[Begun]:
    if first is not None:
        yield first, None
    elif not screen.attended:
        yield from begun_ahead(session, PipedLines(environment.stdin), task.request.max_seqs)
    else:
        while (line := screen.read()) is not None:
            if line.strip():
                yield Question(unquoted(line)), None


def _chat(
    environment: Environment,
    task: Task,
    session: Session,
    first: Question | None,
    typed_ahead: str | None,
) -> ExitCode:
    """Chats, and keeps what a person said for `--continue`, however the chat ends.

    `typed_ahead` is what was typed before the program read keys; None where lines are read.
    """
    screen: Screen
    if typed_ahead is not None:
        from mrs_cli.chat.screens.terminal_screen import TerminalScreen

        sees = session.vision is not None
        screen = TerminalScreen(environment, typed_ahead, quiet=task.quiet, sees=sees)
    else:
        screen = PlainScreen(environment, json=task.json, quiet=task.quiet, statistics=True)
    try:
        if task.resumed is not None:
            screen.note(resumed(session, task.resumed))
        return chat(session, screen, first)
    finally:
        if screen.attended and (task.resumed is None or session.turns != task.resumed.turns):
            keep(session.saved)
