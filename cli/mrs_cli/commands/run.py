"""The commands `plain`, `vision-plain` and `gguf`: load a model, then chat or answer prompts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import TYPE_CHECKING

from mrs.errors import ExitCode, UsageError
from mrs.request import IMAGE_MARK
from mrs_cli.chat.attachments import Attachments, read_attachment
from mrs_cli.chat.chat_images import read_given_audio, read_given_video, read_image
from mrs_cli.chat.chat_settings import completed
from mrs_cli.chat.chat_state import ChatState
from mrs_cli.chat.multiline_text import unquoted
from mrs_cli.chat.question import Question
from mrs_cli.chat.repl import chat, warn_of_images
from mrs_cli.chat.request_log import RequestLog
from mrs_cli.chat.screens.plain_screen import PlainScreen
from mrs_cli.chat.screens.screen import Screen
from mrs_cli.chat.screens.typed_ahead import without_echo
from mrs_cli.chat.session import Session
from mrs_cli.chat.session_commands import resumed
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
from mrs_cli.commands.switch_model import ModelSwitch
from mrs_cli.environment import ChatModel, Environment
from mrs_cli.render.error_lines import say
from mrs_cli.render.log_lines import log_to_stderr

if TYPE_CHECKING:
    from mrs_cli.chat.tools.mcp_connections import McpConnections
    from mrs_cli.chat.tools.tool_box import Answer, ToolBox

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
        attached = _attached(task)
        first = _first_question(task, attached)
        servers = _connected(environment, task, stack)
        typed_ahead = None
        if task.interactive and environment.can_chat and not output.json:
            typed_ahead = stack.enter_context(without_echo(environment.stdin))
        server = attached_model(environment, task)
        model: ChatModel = server or load_model(environment, task.request, quiet=output.quiet)
        session = Session(
            model,
            completed(task.sampling, model.suggested_sampling, task.chosen_by),
            task.system,
            log,
            model_id,
            vision=task.request.vision,
            chosen_by=dict(task.chosen_by),
        )
        stack.callback(lambda: session.model.close())
        model.require_replies()
        if task.interactive:
            screen = _chat_screen(environment, task, session, typed_ahead)
            session.tools = _tool_box(task, servers, screen, session)
            if server is not None:
                screen.note(
                    f"your server at {server.url} answers; \\model ID loads a model here instead"
                )
            return _chat(environment, task, session, screen, first, attached)
        plain = _plain_screen(environment, task)
        session.tools = _tool_box(task, servers, plain, session)
        url = server.url if server else None
        return _answer(environment, task, session, plain, first, attached, url)


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


def _attached(task: RunTask) -> Attachments:
    """The files of `--file`. Raises MrsError."""
    attached = Attachments()
    for name in task.files:
        attached.add(read_attachment(name, vision=task.request.vision is not None))
    return attached


def _first_question(task: RunTask, attached: Attachments) -> Question | None:
    """The question of `--prompt`, with the media of its flags, and all `attached`.

    Raises NotReadable.
    """
    if task.prompt is None:
        return None
    images = (*map(read_image, task.images), *map(read_given_video, task.videos))
    images = (*images, *map(read_given_audio, task.audio), *attached.images)
    files = tuple(attached.files)
    return Question(task.prompt, images, is_typed=True, known=images, files=files)


def _connected(environment: Environment, task: RunTask, stack: ExitStack) -> McpConnections | None:
    """The MCP servers, which start while the model is loaded. Raises Unsupported."""
    if not task.servers.servers:
        return None
    from mrs_cli.chat.tools.mcp_connections import McpConnections

    if not task.output.quiet:
        for note in task.servers.notes:
            say(environment, note)
    shows_errors = task.output.verbose > 0
    return stack.enter_context(McpConnections(task.servers.servers, shows_errors=shows_errors))


def _tool_box(
    task: RunTask, servers: McpConnections | None, screen: Screen, session: Session
) -> ToolBox | None:
    """The tools of the MCP servers; None without any. Raises MrsError."""
    if servers is None:
        return None
    from mrs_cli.chat.tools.tool_box import ToolBox

    def ask(question: str) -> Answer:
        answer = screen.ask(f"{question} (y/N/always)")
        if answer in ("a", "always"):
            return "always"
        return "yes" if answer in ("y", "yes") else "no"

    return ToolBox(
        servers,
        task.allowed_tools,
        ask=ask if screen.attended else None,
        note=screen.note,
        context_tokens=lambda: session.model.context_tokens,
    )


def _plain_screen(environment: Environment, task: RunTask) -> PlainScreen:
    output = task.output
    is_json = output.json or task.stdin is StdinForm.JSON_LINES
    return PlainScreen(environment, json=is_json, quiet=output.quiet)


def _answer(
    environment: Environment,
    task: RunTask,
    session: Session,
    screen: PlainScreen,
    first: Question | None,
    attached: Attachments,
    server: str | None,
) -> ExitCode:
    """Answers each prompt on its own, in order; JSON says which `server` did, or null."""
    output = task.output
    answered = False
    for prompt in _prompts(environment, task, session, screen, first, attached):
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
    attached: Attachments,
) -> Iterator[StartedPrompt]:
    def prompt(text: str) -> StartedPrompt:
        return StartedPrompt(_with_piped(session, first, attached, text))

    if task.stdin is StdinForm.LINES and screen.attended:
        while (line := screen.read()) is not None:
            if line.strip():
                yield prompt(unquoted(line))
    elif task.stdin is StdinForm.WHOLE:
        piped = (
            "" if screen.attended and not task.asks_stdin else _piped(environment, screen, first)
        )
        if first is not None or piped.strip():
            yield prompt(piped)
    else:
        yield from started_ahead(
            session,
            PipedLines(environment.stdin),
            task.request.max_seqs,
            json_prompt if task.stdin is StdinForm.JSON_LINES else lambda line, _: prompt(line),
        )


def _piped(environment: Environment, screen: PlainScreen, first: Question | None) -> str:
    """All of standard input; says that it is waited for if that may surprise."""
    lines = PipedLines(environment.stdin)
    if first is not None and lines.is_empty_for(_SURPRISING_S):
        screen.note("waiting for standard input to end; < /dev/null leaves it out")
    return lines.read_all()


def _with_piped(
    session: Session, first: Question | None, attached: Attachments, piped: str
) -> Question:
    """The question of `--prompt` with what was piped in, whose names attach no images.

    Without that question, what was piped in is one as if it had been typed.
    """
    if first is None:
        images, files = tuple(attached.images), tuple(attached.files)
        return Question(piped, images, is_typed=True, files=files)
    asked = session.attach(first)
    return replace(asked, text=joined(asked.text, piped.replace(IMAGE_MARK, "")))


def _chat(
    environment: Environment,
    task: RunTask,
    session: Session,
    screen: Screen,
    first: Question | None,
    attached: Attachments,
) -> ExitCode:
    """Chats, first about `attached`."""
    if task.resumed is not None:
        screen.note(resumed(session, *task.resumed))
    state = ChatState(
        session,
        edits=screen.edits,
        verbose=task.output.verbose > 0,
        pending=first,
        attached=attached if first is None else Attachments(),
    )
    if screen.attended:
        state.confirm = screen.confirm
    if task.find is not None:
        state.switch_model = ModelSwitch(environment, session, task.request, task.find, screen)
    return chat(state, screen)


def _chat_screen(
    environment: Environment, task: RunTask, session: Session, typed_ahead: str | None
) -> Screen:
    """`typed_ahead` are the keys that were typed while the model was loaded; None if the screen
    reads lines instead of keys."""
    json, quiet = task.output.json, task.output.quiet
    if typed_ahead is None:
        return PlainScreen(environment, json=json, quiet=quiet)
    from mrs_cli.chat.screens.terminal_screen import TerminalScreen

    return TerminalScreen(
        environment, typed_ahead, quiet=quiet, vision=lambda: session.vision is not None
    )
