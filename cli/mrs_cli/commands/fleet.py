"""`mrs serve --ray`: replicas of a server, which Ray places and replaces."""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mrs.errors import ExitCode, Unsupported, UsageError
from mrs.request import RunRequest, ServerLoad
from mrs_cli.commands.serve import server_settings
from mrs_cli.environment import Environment
from mrs_cli.parsing.flags.command_flags import OutputFlags
from mrs_cli.parsing.flags.server_flags import ServerFlags
from mrs_cli.parsing.presets import parts_of
from mrs_cli.render.error_lines import say

if TYPE_CHECKING:
    from mrs.plan.plan import Plan
    from mrs.routing.replica import Rates

#: Flags that are the fleet's: a replica's server listens where Ray asks it.
_OF_FLEETS = ("--ray", "--replicas", "--max-replicas", "-p", "--port", "--serve-ip", "--host")
#: A reply of so many tokens is expected.
_REPLY_TOKENS = 250
#: Ray starts another replica when more than this share of the sequences is used.
_WANTED_SHARE = 0.75


def serve_fleet(
    environment: Environment,
    output: OutputFlags,
    flags: ServerFlags,
    request: RunRequest,
    tree: Any,
) -> ExitCode:
    """Deploys replicas of a server to Ray and waits until the process is told to stop.

    `tree` has all commands, which tell the words of the fleet from those of its servers.

    Raises UsageError, and Unsupported without Ray.
    """
    least = flags.replicas or 1
    most = least if flags.max_replicas is None else flags.max_replicas
    if most < least:
        raise UsageError(
            f"--max-replicas {most} is less than --replicas {least}", hint="give more, or leave it"
        )
    if flags.ray is None:
        raise UsageError("--replicas is for a server under Ray", hint="add --ray local")
    for name in ("uds", "tls_cert", "tls_key"):
        if getattr(flags, name) is not None:
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(f"{flag} is not for --ray", hint="put a proxy with TLS before it")
    try:
        from mrs.routing.ray_app import Fleet, run_fleet, stop_fleet
    except ImportError as error:
        if error.name not in ("ray", "httpx"):
            raise
        raise Unsupported("--ray needs Ray", hint="pip install 'ray[serve]' httpx") from error
    from mrs.run.planned_model import PlannedModel

    settings = server_settings(environment, flags)
    load = ServerLoad(settings.max_body_bytes, settings.max_connections)
    plan = PlannedModel(replace(request, server=load)).plan
    fleet = Fleet(
        tuple(replica_words(environment.words, tree)),
        least,
        most,
        _WANTED_SHARE * request.max_seqs,
        num_gpus=sum(each.kind != "cpu" for each in plan.devices),
        memory_bytes=plan.host_bytes,
        rates=_rates(plan, request),
    )
    address = None if flags.ray == "local" else flags.ray
    run_fleet(fleet, address, settings.host, settings.port)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):  # Ray has set its own
        signal.signal(number, lambda *_: stop.set())
    if not output.quiet:
        range_of = f"{most}" if most == least else f"{least} to {most}"
        count = "one replica" if most == 1 else f"{range_of} replicas"
        say(environment, f"{count} at http://{settings.host}:{settings.port}/v1")
    stop.wait()
    if address is None:
        stop_fleet()
    return ExitCode.DONE


def _rates(plan: Plan, request: RunRequest) -> Rates:
    from mrs.routing.replica import Rates

    token_bytes = max(plan.kv_bytes_per_token, 1)
    return Rates(
        prompt_tokens_per_s=plan.speed.prompt.expected,
        reply_s=_REPLY_TOKENS / plan.speed.decode.expected,
        slots=request.max_seqs,
        cache_tokens=max(sum(plan.prefix_bytes) // token_bytes, 1),
    )


def replica_words(words: Sequence[str], tree: Any) -> list[str]:
    """The words of a replica's server: those of the fleet without what is the fleet's own.

    `tree` has all commands.
    """
    left, place = list(words), 0
    for part in reversed(list(parts_of(words, tree))):
        if part.kind == "flag" and (part.name in _OF_FLEETS or part.name.startswith("-p")):
            del left[part.start : part.end]  # -p1234, too
            place = max(place - (part.end - part.start), 0)  # what has its place is behind
        elif part.kind == "command" and part.name == "serve":
            place = part.end
    left[place:place] = ["--port", "0"]
    return left
