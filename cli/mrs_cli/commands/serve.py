"""`mrs --port` and `mrs serve`: answer requests over HTTP."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from ipaddress import ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from mrs.errors import ExitCode, UsageError
from mrs.events import LoadProgress, OnProgress
from mrs.request import RunRequest
from mrs.source.address import model_name
from mrs.units import parse_bytes
from mrs_cli.commands.loading import load_model
from mrs_cli.commands.running_servers import announced
from mrs_cli.environment import Environment
from mrs_cli.parsing.flags.command_flags import OutputFlags
from mrs_cli.parsing.flags.global_flags import GlobalFlags
from mrs_cli.parsing.flags.sampling_flags import AskFlags
from mrs_cli.parsing.flags.server_flags import DEFAULT_PORT, ServerFlags, duration_s
from mrs_cli.render.error_lines import say
from mrs_cli.render.log_lines import log_to_stderr
from mrs_cli.render.safe_text import one_line

if TYPE_CHECKING:
    from mrs.plan.plan import Plan
    from mrs.run.loaded_model import LoadedModel
    from mrs.run.request_memory import RequestMemory
    from mrs.server.log.lines import RequestLog
    from mrs.server.serve import LoadShared
    from mrs.server.settings import ServerSettings

KEY_VARIABLE = "MRS_API_KEY"
#: Time between tokens that new prompts should not exceed.
TARGET_INTER_TOKEN_MS = 250


def run_server(
    environment: Environment,
    output: OutputFlags,
    flags: ServerFlags,
    models: RunRequest | Mapping[str, RunRequest],
    find: Callable[[str], RunRequest],
) -> ExitCode:
    """Serves a model, or several by name, until the process is told to stop.

    `find` makes the request of a model that a client names.
    """
    from mrs.server.http.listener import activated, bind, bind_unix, url_of

    settings = server_settings(environment, flags)
    passed = activated(environment.variables)
    if passed is not None:
        if flags.port is not None or flags.serve_ip is not None or flags.uds is not None:
            raise UsageError(
                "systemd has bound the address", hint="leave out --port, --serve-ip and --uds"
            )
        settings = replace(settings, host=passed.getsockname()[0])
    is_tls = settings.tls_cert is not None

    def listening() -> socket.socket:
        if flags.uds is None:
            return passed or bind(settings.host, settings.port)
        if flags.port is not None or flags.serve_ip is not None:
            raise UsageError("--uds is no port", hint="leave out --port and --serve-ip")
        return bind_unix(Path(flags.uds).expanduser())

    target_gap_s = (flags.target_inter_token_ms or TARGET_INTER_TOKEN_MS) / 1000
    served_names = list(dict.fromkeys(flags.served_model_name or ()))
    if isinstance(models, RunRequest):
        models = {(served_names or [model_name(models.source.model_id)])[0]: models}
    elif served_names:
        raise UsageError(
            "--served-model-name is for one model",
            hint='name each in the file of --config: "alias": NAME',
        )

    def served(request: RunRequest) -> RunRequest:
        return replace(request, target_gap_s=target_gap_s)

    with (
        log_to_stderr(environment, quiet=output.quiet, verbose=output.verbose),
        listening() as listener,
    ):
        from mrs.server.models.slot import ModelSlot
        from mrs.server.serve import Server

        if not output.quiet:
            _warn(environment, settings)

        def say_ready(model: LoadedModel) -> None:
            if not output.quiet:
                url, names = url_of(listener, is_tls=is_tls), ", ".join(served_names or models)
                _say_memory(environment, model.plan)
                if flags.uds is not None:
                    say(environment, f"serving {names} at {url}")
                else:
                    say(environment, f"serving {names} at {url}/v1, chat page at {url}/")

        with announced(url_of(listener, is_tls=is_tls), served_names or list(models)) as local:
            Server(
                [
                    ModelSlot(served(request), *(served_names or [name]))
                    for name, request in models.items()
                ],
                settings,
                listener,
                load_function(environment, output),
                lambda line: say(environment, line),
                _request_log(environment, output),
                on_ready=say_ready,
                find=lambda name: served(find(name)),
                local=local,
            ).run()
    return ExitCode.DONE


def load_function(environment: Environment, output: OutputFlags) -> LoadShared:
    """How a server loads a model: with progress on the terminal, and for its clients."""

    def load(request: RunRequest, report: OnProgress, memory: RequestMemory) -> LoadedModel:
        reporting = replace(environment, load=_reporting(environment, report, memory))
        return cast("LoadedModel", load_model(reporting, request, quiet=output.quiet))

    return load


def refuse_prompts(
    flags: GlobalFlags, ask: AskFlags, what: str = "a server", *, is_stdin: bool = False
) -> None:
    """Raises UsageError for a prompt to answer or a chat to begin, for their settings and log."""
    asked = {f"--{name.replace('_', '-')}": value for name, value in vars(ask).items()}
    if flags.log is not None:
        raise UsageError(
            f"--log and {what} exclude each other: it writes down no texts",
            hint="leave out --log; --json and -v write a line for each request",
        )
    given = {"-i": flags.interactive_mode, "--continue": flags.resume, "--session": flags.session}
    given |= {"-": is_stdin, **asked}
    for flag, value in given.items():
        if value is not None and value is not False:
            raise UsageError(
                f"{flag} and {what} exclude each other",
                hint=f"leave out {flag}: each request brings its own prompt and settings",
            )


def server_settings(environment: Environment, flags: ServerFlags) -> ServerSettings:
    """The settings that flags and variables give. Raises UsageError."""
    from mrs.server.settings import ServerSettings

    if flags.tls_key is not None and flags.tls_cert is None:
        raise UsageError("--tls-key needs its certificate", hint="add --tls-cert FILE")
    if flags.batch_dir_size is not None and not flags.batch_dir:
        raise UsageError("--batch-dir-size needs a folder", hint="add --batch-dir FOLDER")
    given: dict[str, Any] = {
        "host": flags.serve_ip,
        "keep_alive_s": duration_s(flags.keep_alive, "--keep-alive"),
        "max_queue": flags.max_queue,
        "max_body_bytes": flags.max_body and flags.max_body * 2**20,
        "request_timeout_s": flags.request_timeout,
        "sse_keep_alive_s": flags.sse_keep_alive,
        "drain_grace_s": flags.drain_grace,
        "drain_timeout_s": flags.drain_timeout,
        "tls_cert": flags.tls_cert and Path(flags.tls_cert).expanduser(),
        "tls_key": flags.tls_key and Path(flags.tls_key).expanduser(),
        "root_path": _root_path(flags.root_path),
        "batch_folder": flags.batch_dir and Path(flags.batch_dir).expanduser(),
        "batch_folder_bytes": _size("--batch-dir-size", flags.batch_dir_size),
    }
    return ServerSettings(
        port=DEFAULT_PORT if flags.port is None else flags.port,
        api_keys=_api_keys(environment, flags.api_key_file),
        admin_keys=_keys_of("--admin-key-file", flags.admin_key_file),
        allowed_hosts=tuple(flags.allow_host or ()),
        allowed_origins=tuple(flags.allow_origin or ()),
        allow_image_urls=flags.allow_image_urls,
        allow_load=flags.allow_load,
        allow_adapters=flags.allow_adapter_loading,
        strict_names=flags.strict_model_name,
        trusted_proxies=_proxies(flags),
        **{name: value for name, value in given.items() if value is not None},
    )


def _root_path(text: str | None) -> str | None:
    """Raises UsageError."""
    if text is None:
        return None
    path = text.rstrip("/")
    if not re.fullmatch(r"(/[A-Za-z0-9._~-]+)*", path):
        raise UsageError(f"--root-path {text} is no path", hint="give one such as /mrs")
    return path


def _proxies(flags: ServerFlags) -> tuple[str, ...]:
    """Raises UsageError."""
    for each in flags.trusted_proxy or ():
        if each == "unix" and flags.uds is not None:
            continue
        try:
            ip_network(each)
        except ValueError as error:
            raise UsageError(
                f"--trusted-proxy {each} is no address of a proxy",
                hint="give 127.0.0.1, a network such as 10.0.0.0/8, or with --uds unix",
            ) from error
    return tuple(flags.trusted_proxy or ())


def _size(flag: str, text: str | None) -> int | None:
    """Raises UsageError."""
    if text is None:
        return None
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise UsageError(f"{flag}: {error}") from error


def _api_keys(environment: Environment, path: str | None) -> tuple[str, ...]:
    """The keys of the file and of the variable. An empty one would leave the server open."""
    keys = list(_keys_of("--api-key-file", path))
    variable = environment.variables.get(KEY_VARIABLE)
    if variable is not None:
        if not variable.strip():
            raise UsageError(f"{KEY_VARIABLE} is empty", hint="unset it, or give it a key")
        keys.append(variable.strip())
    return tuple(keys)


def _keys_of(flag: str, path: str | None) -> tuple[str, ...]:
    """The keys of a file, one a line. Raises UsageError."""
    if path is None:
        return ()
    try:
        lines = Path(path).expanduser().read_text(encoding="utf-8-sig").splitlines()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not a text"
        raise UsageError(f"{flag} {path} cannot be read", where=reason) from error
    keys = [line.strip() for line in lines if line.strip()]
    if not keys:
        raise UsageError(f"{flag} {path} has no key", hint="write one key per line")
    return tuple(keys)


def _request_log(environment: Environment, output: OutputFlags) -> RequestLog:
    """Lines for a person at a terminal; a pipe gets all of them only with --json or -v."""
    from mrs.server.log.lines import RequestLog

    def write(line: str) -> None:
        with suppress(OSError):
            environment.stderr.write(one_line(line) + "\n")
            environment.stderr.flush()

    is_wanted = output.json or output.verbose or environment.stderr.isatty()
    return RequestLog(write, as_json=output.json, only_problems=output.quiet or not is_wanted)


def _say_memory(environment: Environment, plan: Plan) -> None:
    from mrs_cli.render.plan.plan_facts import server

    if line := server(plan):
        say(environment, line)


def _warn(environment: Environment, settings: ServerSettings) -> None:
    if not settings.api_keys and settings.is_public:
        say(
            environment,
            f"warning: everybody who reaches {settings.host} can use this server: "
            "add --api-key-file",
        )


def _reporting(environment: Environment, report: OnProgress, memory: RequestMemory) -> Any:
    """A function that loads as the environment's does, into `memory`, and reports its progress as
    well."""

    def load(request: RunRequest, shown: OnProgress | None = None) -> Any:
        def both(progress: LoadProgress) -> None:
            report(progress)
            if shown is not None:
                shown(progress)

        return environment.load(request, both, memory)

    return load
