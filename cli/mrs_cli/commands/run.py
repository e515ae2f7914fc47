"""The commands `plain`, `vision-plain` and `gguf`: load a model, then chat or answer prompts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing

from mrs.errors import ExitCode, UsageError
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
from mrs_cli.commands.loading import load_model
from mrs_cli.commands.run_task import RunTask
from mrs_cli.commands.stdin_prompts import PipedLines, StartedPrompt, started_ahead
from mrs_cli.environment import Environment
from mrs_cli.render.log_lines import log_to_stderr


def run(environment: Environment, task: RunTask) -> ExitCode:
    """Loads the model of `task`, and chats or answers its prompts."""
    _check_prompt(environment, task)
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
        model = load_model(environment, task.request, quiet=output.quiet)
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
        return _answer(environment, task, session, first)


def _check_prompt(environment: Environment, task: RunTask) -> None:
    """UsageError if there is no prompt, and nobody has asked to type some."""
    is_asked_for = task.interactive or task.stdin or task.prompt is not None
    if not is_asked_for and environment.stdin.isatty():
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
    environment: Environment, task: RunTask, session: Session, first: Question | None
) -> ExitCode:
    """Answers each prompt on its own, in order."""
    output = task.output
    screen = PlainScreen(
        environment, json=output.json, quiet=output.quiet, statistics=output.verbose > 0
    )
    answered = False
    for prompt, started in _prompts(environment, task, session, screen, first):
        answered = True
        session.clear()
        prompt = session.attach(prompt)
        warn_of_images(session, screen, prompt)
        reply = session.ask(prompt, screen.show, started)
        screen.statistics(reply)
        if reply.reason == "cancelled":
            raise KeyboardInterrupt
    if not answered:
        raise UsageError(
            "standard input has no prompt", hint="pipe prompts in, one per line, or use --prompt"
        )
    return ExitCode.DONE


def _prompts(
    environment: Environment,
    task: RunTask,
    session: Session,
    screen: PlainScreen,
    first: Question | None,
) -> Iterator[StartedPrompt]:
    if first is not None:
        yield first, None
    elif not screen.attended:
        yield from started_ahead(session, PipedLines(environment.stdin), task.request.max_seqs)
    else:
        while (line := screen.read()) is not None:
            if line.strip():
                yield Question(unquoted(line), is_typed=True), None


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
        return chat(session, screen, first)
    finally:
        if screen.attended and (task.resumed is None or session.turns != task.resumed.turns):
            save_last(session.saved)


def _chat_screen(
    environment: Environment, task: RunTask, session: Session, typed_ahead: str | None
) -> Screen:
    json, quiet = task.output.json, task.output.quiet
    if typed_ahead is None:
        return PlainScreen(environment, json=json, quiet=quiet, statistics=True)
    from mrs_cli.chat.screens.terminal_screen import TerminalScreen

    vision = session.vision is not None
    return TerminalScreen(environment, typed_ahead, quiet=quiet, vision=vision)
