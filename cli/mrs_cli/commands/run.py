"""The commands `plain`, `vision-plain` and `gguf`: load a model, then chat or answer prompts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import cast

from mrs.errors import ExitCode, UsageError
from mrs.request import IMAGE_MARK
from mrs_cli.chat.chat_commands import resumed
from mrs_cli.chat.chat_images import read_given_video, read_image
from mrs_cli.chat.chat_settings import completed
from mrs_cli.chat.last_chat import save_last
from mrs_cli.chat.multiline_text import unquoted
from mrs_cli.chat.question import Question
from mrs_cli.chat.repl import chat, warn_of_images
from mrs_cli.chat.request_log import RequestLog
from mrs_cli.chat.screens.plain_screen import PlainScreen
from mrs_cli.chat.screens.screen import Screen
from mrs_cli.chat.screens.typed_ahead import without_echo
from mrs_cli.chat.session import Session
from mrs_cli.commands.attaching import attached_model
from mrs_cli.commands.loading import load_model
from mrs_cli.commands.run_task import RunTask
from mrs_cli.commands.stdin_prompts import (
    PipedLines,
    StartedPrompt,
    StdinForm,
    joined,
    json_prompt,
    started_ahead,
)
from mrs_cli.environment import Environment, Model
from mrs_cli.render.log_lines import log_to_stderr

#: A pipe that brings nothing for so long may have been left open by mistake.
_SURPRISING_S = 1.0


def run(environment: Environment, task: RunTask) -> ExitCode:
    """Loads the model of `task`, and chats or answers its prompts."""
    task = _with_chat(environment, task)
    output, model_id = task.output, task.request.source.model_id
    with ExitStack() as stack:
        stack.enter_context(log_to_stderr(environment, quiet=output.quiet, verbose=output.verbose))
        log = None
        if task.log:
            log = stack.enter_context(closing(RequestLog.open(task.log, model_id)))
        first = _first_question(task)
        typed_ahead = None
        if task.interactive and environment.can_chat and not output.json:
            typed_ahead = stack.enter_context(without_echo(environment.stdin))
        attached = attached_model(environment, task)
        if attached is None:
            model = load_model(environment, task.request, quiet=output.quiet)
        else:
            model = cast("Model", attached)  # it has what prompts need, and chats never attach
        stack.callback(model.close)
        model.require_replies()
        session = Session(
            model,
            completed(task.sampling, model.suggested_sampling, task.chosen_by),
            task.system,
            log,
            model_id,
            vision=task.request.vision,
            chosen_by=dict(task.chosen_by),
        )
        if task.interactive:
            return _chat(environment, task, session, first, typed_ahead)
        return _answer(environment, task, session, first, attached.url if attached else None)


def _with_chat(environment: Environment, task: RunTask) -> RunTask:
    """`task`, which chats at a terminal if nothing is asked. UsageError if nobody could chat."""
    reads_stdin = task.asks_stdin or task.stdin is not StdinForm.WHOLE
    if task.interactive or reads_stdin or task.prompt is not None or not environment.stdin.isatty():
        return task
    if environment.stdout.isatty():
        return replace(task, interactive=True)
    raise UsageError(
        "no prompt is given",
        hint='add -i to chat, --prompt "TEXT" to ask once, --port 1234 to serve, or a pipe',
    )


def _first_question(task: RunTask) -> Question | None:
    """The question of `--prompt`, with the images and videos of its flags. Raises NotReadable."""
    if task.prompt is None:
        return None
    images = (*map(read_image, task.images), *map(read_given_video, task.videos))
    return Question(task.prompt, images, is_typed=True, known=images)


def _answer(
    environment: Environment,
    task: RunTask,
    session: Session,
    first: Question | None,
    server: str | None,
) -> ExitCode:
    """Answers each prompt on its own, in order; JSON says which `server` did, or null."""
    output = task.output
    screen = PlainScreen(
        environment,
        json=output.json or task.stdin is StdinForm.JSON_LINES,
        quiet=output.quiet,
    )
    answered = False
    for prompt in _prompts(environment, task, session, screen, first):
        answered = True
        if prompt.error is not None:
            raise prompt.error
        session.clear()
        session.system = task.system if prompt.system is None else prompt.system
        screen.reply_fields = {**prompt.fields, "server": server}
        question = session.attach(prompt.question)
        warn_of_images(session, screen, question)
        reply = session.ask(question, screen.show, prompt.started)
        if output.verbose:
            screen.statistics(reply)
        if reply.reason == "cancelled":
            raise KeyboardInterrupt
    if not answered:
        raise UsageError("standard input has no prompt", hint="pipe one in, or use --prompt")
    return ExitCode.DONE


def _prompts(
    environment: Environment,
    task: RunTask,
    session: Session,
    screen: PlainScreen,
    first: Question | None,
) -> Iterator[StartedPrompt]:
    if task.stdin is StdinForm.LINES and screen.attended:
        while (line := screen.read()) is not None:
            if line.strip():
                yield StartedPrompt(_with_piped(session, first, unquoted(line)))
    elif task.stdin is StdinForm.WHOLE:
        piped = (
            "" if screen.attended and not task.asks_stdin else _piped(environment, screen, first)
        )
        if first is not None or piped.strip():
            yield StartedPrompt(_with_piped(session, first, piped))
    else:
        yield from started_ahead(
            session,
            PipedLines(environment.stdin),
            task.request.max_seqs,
            json_prompt
            if task.stdin is StdinForm.JSON_LINES
            else lambda line, _: StartedPrompt(_with_piped(session, first, line)),
        )


def _piped(environment: Environment, screen: PlainScreen, first: Question | None) -> str:
    """All of standard input; says that it is waited for if that may surprise."""
    lines = PipedLines(environment.stdin)
    if first is not None and lines.is_empty_for(_SURPRISING_S):
        screen.note("waiting for standard input to end; < /dev/null leaves it out")
    return lines.read_all()


def _with_piped(session: Session, first: Question | None, piped: str) -> Question:
    """The question of `--prompt` with what was piped in, whose names attach no images.

    Without that question, what was piped in is one as if it had been typed.
    """
    if first is None:
        return Question(piped, is_typed=True)
    asked = session.attach(first)
    return replace(asked, text=joined(asked.text, piped.replace(IMAGE_MARK, "")))


def _chat(
    environment: Environment,
    task: RunTask,
    session: Session,
    first: Question | None,
    typed_ahead: str | None,
) -> ExitCode:
    """Chats, and saves a person's chat for `--continue`, even after an error.

    `typed_ahead` are the keys that were typed while the model was loaded; None if the screen reads
    lines instead of keys.
    """
    screen = _chat_screen(environment, task, session, typed_ahead)
    try:
        if task.resumed is not None:
            screen.note(resumed(session, task.resumed))
        return chat(session, screen, first, verbose=task.output.verbose > 0)
    finally:
        if screen.attended and (task.resumed is None or session.turns != task.resumed.turns):
            save_last(session.saved)


def _chat_screen(
    environment: Environment, task: RunTask, session: Session, typed_ahead: str | None
) -> Screen:
    json, quiet = task.output.json, task.output.quiet
    if typed_ahead is None:
        return PlainScreen(environment, json=json, quiet=quiet)
    from mrs_cli.chat.screens.terminal_screen import TerminalScreen

    vision = session.vision is not None
    return TerminalScreen(environment, typed_ahead, quiet=quiet, vision=vision)
