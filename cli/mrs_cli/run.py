"""One run: load the model, then chat or answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing

from mrs.errors import ExitCode, UsageError
from mrs_cli.ask import Task
from mrs_cli.environment import Environment
from mrs_cli.log import RequestLog
from mrs_cli.piped import Begun, PipedLines, begun_ahead
from mrs_cli.render.messages import listening
from mrs_cli.render.plain import PlainScreen
from mrs_cli.render.progress import load_model
from mrs_cli.repl import chat
from mrs_cli.screen import Screen
from mrs_cli.session import Question, Session


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
        model = load_model(environment, task.request, quiet=task.quiet)
        stack.callback(model.close)
        session = Session(
            model, task.sampling, task.system, log, model_id=task.request.source.model_id
        )
        if task.interactive:
            return chat(session, _chat_screen(environment, task), task.prompt)
        return _answer(environment, task, session)


def _answer(environment: Environment, task: Task, session: Session) -> ExitCode:
    """Answers each prompt on its own, in order."""
    screen = PlainScreen(environment, json=task.json, quiet=task.quiet, statistics=task.verbose > 0)
    asked = False
    for prompt, begun in _prompts(environment, task, session, screen):
        asked = True
        session.forget()
        reply = session.ask(Question(prompt), screen.show, begun)
        screen.statistics(reply)
        if reply.reason == "cancelled":
            raise KeyboardInterrupt
    if not asked:
        raise UsageError(
            "standard input held no prompt", hint="pipe prompts in, one a line, or use --prompt"
        )
    return ExitCode.DONE


def _prompts(
    environment: Environment, task: Task, session: Session, screen: PlainScreen
) -> Iterator[Begun]:
    if task.prompt is not None:
        yield task.prompt, None
    elif not screen.attended:
        yield from begun_ahead(session, PipedLines(environment.stdin), task.request.max_seqs)
    else:
        while (line := screen.read()) is not None:
            if line.strip():
                yield line, None


def _chat_screen(environment: Environment, task: Task) -> Screen:
    if environment.can_chat and not task.json:
        from mrs_cli.render.terminal import TerminalScreen

        return TerminalScreen(environment, quiet=task.quiet)
    return PlainScreen(environment, json=task.json, quiet=task.quiet, statistics=True)
