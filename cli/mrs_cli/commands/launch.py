"""`mrs launch`: a coding agent in the foreground, with a server of its own or one that runs."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TextIO

from mrs.errors import MrsError, NotReadable, UsageError
from mrs.request import RunRequest
from mrs.source.address import model_name
from mrs_cli.chat.state_folder import state_folder
from mrs_cli.commands.attaching import answers
from mrs_cli.commands.running_servers import announced
from mrs_cli.environment import Environment
from mrs_cli.parsing.coding_agents import AGENTS, Agent, Endpoint
from mrs_cli.parsing.flags.command_flags import OutputFlags
from mrs_cli.render.error_lines import say
from mrs_cli.render.log_lines import log_to_stderr

if TYPE_CHECKING:
    from mrs.run.loaded_model import LoadedModel

#: The planned context, unless --max-seq-len says another one: agents send prompts of 10,000
#: tokens and more (Claude Code 2.1.197: 23,000) before the first word of a person.
CONTEXT_TOKENS = 65_536
#: Prompts of agents hardly fit into a shorter one.
_LEAST_CONTEXT_TOKENS = 32_768
_LOG = "launch.log"
_SIGNALLED = 128


def launch(
    environment: Environment, output: OutputFlags, request: RunRequest, words: Sequence[str]
) -> int:
    """Runs the agent that the first word names, and returns its exit code.

    Raises UsageError for an unknown agent, NotReadable for one that is not installed.
    """
    agent, program = _found(environment, words)
    request = _with_context(environment, request, agent)
    with ExitStack() as stack:
        endpoint = _reused(environment, request)
        if endpoint is None:
            endpoint = stack.enter_context(_serving(environment, output, request))
        if not output.quiet:
            say(environment, f"starting {agent.title} with {endpoint.model} at {endpoint.url}")
        return _run(
            environment,
            [program, *agent.arguments(endpoint), *words[1:]],
            {
                **{k: v for k, v in environment.variables.items() if k not in agent.unset},
                **agent.variables(endpoint),
            },
        )


def _found(environment: Environment, words: Sequence[str]) -> tuple[Agent, str]:
    """What is known of the agent, and the path of its program."""
    known = ", ".join(AGENTS)
    if not words:
        raise UsageError("no coding agent is named", hint=f"give one of {known}")
    name = words[0]
    if name not in AGENTS:
        raise UsageError(f"there is no coding agent {name}", hint=f"give one of {known}")
    program = shutil.which(name, path=environment.variables.get("PATH"))
    if program is None:
        raise NotReadable(f"{AGENTS[name].title} is not installed", hint=AGENTS[name].install)
    return AGENTS[name], program


def _with_context(environment: Environment, request: RunRequest, agent: Agent) -> RunRequest:
    """The request, planned for the context that an agent needs if the model has learned it."""
    if request.max_seq_len is not None:
        return request
    from mrs.run.model_loader import ModelLoader

    most_tokens = ModelLoader(request).planner.description.spec.context_tokens
    if most_tokens < _LEAST_CONTEXT_TOKENS:
        say(
            environment,
            f"warning: the model's context is {most_tokens:,} tokens, and {agent.title} may need "
            f"{_LEAST_CONTEXT_TOKENS:,} and more",
        )
    return replace(request, max_seq_len=min(CONTEXT_TOKENS, most_tokens))


def _reused(environment: Environment, request: RunRequest) -> Endpoint | None:
    """A server that runs, has the model planned for as long a context, and asks for no key.

    Agents reach no Unix socket, and may not trust the certificate of another."""
    for found in answers(environment, request):
        if isinstance(found, str) or not found.url.startswith("http://"):
            continue
        if not found.needs_key:
            name = model_name(request.source.model_id)
            return Endpoint(found.url, "any", name, request.max_seq_len or CONTEXT_TOKENS)
    return None


@contextmanager
def _serving(
    environment: Environment, output: OutputFlags, request: RunRequest
) -> Iterator[Endpoint]:
    """A server in a thread, on a free port of this machine, with a key that nobody else knows.

    Once the model is loaded, its lines go to a file: the terminal is the agent's.
    """
    from mrs.server.http.listener import bind, url_of
    from mrs.server.log.lines import RequestLog
    from mrs.server.models.slot import ModelSlot
    from mrs.server.serve import Server
    from mrs.server.settings import ServerSettings
    from mrs_cli.commands.serve import load_function

    key, name = secrets.token_urlsafe(24), model_name(request.source.model_id)
    settings = ServerSettings(api_keys=(key,), drain_timeout_s=0.0)
    loaded: list[LoadedModel] = []
    errors: list[BaseException] = []
    is_settled = threading.Event()

    def on_ready(model: LoadedModel) -> None:
        loaded.append(model)
        is_settled.set()

    def serve(server: Server) -> None:
        try:
            server.run()
        except BaseException as error:  # noqa: BLE001 - raised by the main thread
            errors.append(error)
        finally:
            is_settled.set()

    with ExitStack() as stack:
        log = stack.enter_context(_log_file())
        logging = replace(environment, stderr=log)
        listener = stack.enter_context(bind(settings.host, 0))
        local = stack.enter_context(announced(url_of(listener), [name]))
        server = Server(
            [ModelSlot(request, name)],
            settings,
            listener,
            load_function(environment, output),
            lambda line: say(logging if loaded else environment, line),
            RequestLog(lambda line: print(line, file=log, flush=True), as_json=False),
            on_ready=on_ready,
            local=local,
        )
        thread = threading.Thread(target=serve, args=(server,), name="mrs-server")
        with log_to_stderr(environment, quiet=output.quiet, verbose=output.verbose):
            thread.start()
            try:
                is_settled.wait()
            except BaseException:
                server.stop()  # which ends the process, because loading cannot be stopped
                thread.join()
                raise
        if not loaded:
            raise errors[0] if errors else MrsError("the server ended before it was ready")
        with log_to_stderr(logging, quiet=output.quiet, verbose=output.verbose):
            try:
                context_tokens = loaded[0].plan.workload.context_tokens
                yield Endpoint(url_of(listener), key, name, context_tokens)
            finally:
                server.stop()
                thread.join()
    if errors:
        raise errors[0]


@contextmanager
def _log_file() -> Iterator[TextIO]:
    try:
        path = state_folder() / _LOG
        path.touch(mode=0o600)
    except OSError:
        path = Path(os.devnull)
    with path.open("w", encoding="utf-8") as file:
        yield file


def _run(environment: Environment, command: list[str], variables: dict[str, str]) -> int:
    """The exit code of `command` in the foreground.

    It gets Ctrl-C from the terminal itself, and other signals to end from this process.
    """
    process: subprocess.Popen[bytes] | None = None

    def pass_on(number: int, frame: FrameType | None) -> None:
        if process is not None:
            process.send_signal(number)

    handlers: dict[signal.Signals, Any] = {signal.SIGINT: lambda *_: None}
    for each in ("SIGTERM", "SIGHUP"):
        if hasattr(signal, each):
            handlers[signal.Signals[each]] = pass_on
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        process = subprocess.Popen(command, env=variables)
        code = process.wait()
    except OSError as error:
        raise NotReadable(f"cannot start {command[0]}", where=error.strerror or "") from error
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code if code >= 0 else _SIGNALLED - code
