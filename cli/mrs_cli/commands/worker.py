"""`mrs worker`: compute some layers of a model for a coordinator on this or another machine."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from mrs.errors import ExitCode, UsageError
from mrs.request import ClusterRequest, RunRequest, require_whole_stages
from mrs_cli.environment import Environment
from mrs_cli.parsing.flags.cluster_flags import WorkerFlags
from mrs_cli.parsing.flags.command_flags import OutputFlags
from mrs_cli.parsing.model_requests import valid_token_source
from mrs_cli.render.error_lines import say
from mrs_cli.render.log_lines import log_to_stderr

if TYPE_CHECKING:
    from mrs.distributed.peer_variables import PeerRole
    from mrs.distributed.worker import WorkerSettings
    from mrs.plan.planner import Planner


def work(environment: Environment, output: OutputFlags, flags: WorkerFlags) -> ExitCode:
    """Joins the coordinator of `--join` and serves it until it leaves, or until Ctrl-C."""
    from mrs.distributed.access import ANY_OF_THE_HUB, Access
    from mrs.distributed.launch import PARENT_VARIABLE
    from mrs.distributed.protocol.handshake import parse_address
    from mrs.distributed.protocol.secret import find_secret
    from mrs.distributed.worker import WorkerSettings

    if flags.join is None:
        raise UsageError("no coordinator is given", hint="add --join HOST:PORT")
    address = parse_address(flags.join, "--join")
    secret = find_secret(address[0], environment.variables)
    parent = environment.variables.get(PARENT_VARIABLE, "")
    parent_pid = int(parent) if parent.isdecimal() else 0
    allowed = tuple(flags.allow_model or (ANY_OF_THE_HUB,))
    access = Access(flags.model_id, allowed, valid_token_source(flags.token_source))
    settings = WorkerSettings(
        address,
        secret,
        flags.once,
        flags.rank or 0,
        None if parent_pid else access,  # who has started it has the same user's rights
        parent_pid=parent_pid,
    )
    return _serve(environment, output, settings)


def launched_request(environment: Environment, request: RunRequest) -> RunRequest:
    """The request of one of several processes that another program has started.

    Variables of torchrun, Slurm or mistral.rs say which one. Rank 0 is the coordinator; any
    other rank works for it, and this ends the process with SystemExit.
    """
    variables, cluster = environment.variables, request.cluster
    if cluster is not None and cluster.group_size <= 1:
        return request
    from mrs.distributed.launch import launched
    from mrs.distributed.peer_variables import peer_role

    role = None if cluster is not None else peer_role(variables)
    if role is not None and role.cluster is not None:
        return replace(request, cluster=role.cluster)
    if role is not None:
        raise SystemExit(_work_as(environment, request, role))
    rank = launched(variables)
    if rank is None:
        return request
    group_size = 0 if cluster is None else cluster.group_size
    require_whole_stages(rank.world, group_size)
    secret = rank.secret(variables)
    if rank.rank == 0:
        return replace(request, cluster=ClusterRequest(group_size=group_size))
    from mrs.distributed.access import Access
    from mrs.distributed.worker import WorkerSettings

    access = Access.of(request)
    settings = WorkerSettings(
        rank.find_coordinator(), secret, once=True, rank=rank.rank, access=access
    )
    raise SystemExit(_serve(environment, OutputFlags(quiet=True), settings))


def _work_as(environment: Environment, request: RunRequest, role: PeerRole) -> ExitCode:
    """Serve the coordinator of mistral.rs's variables with this machine's copy of the model."""
    from mrs.distributed.access import Access
    from mrs.distributed.protocol.handshake import parse_address
    from mrs.distributed.protocol.secret import find_secret
    from mrs.distributed.worker import WorkerSettings

    address = parse_address(role.address, "the coordinator's address")
    secret = find_secret(address[0], environment.variables)
    access = Access.of(request)
    settings = WorkerSettings(address, secret, once=True, rank=role.rank, access=access)
    return _serve(environment, OutputFlags(), settings)


def _serve(environment: Environment, output: OutputFlags, settings: WorkerSettings) -> ExitCode:
    from mrs.distributed.worker import run_worker

    def tell(text: str) -> None:
        if not output.quiet or text.startswith("error: "):
            say(environment, text)

    with log_to_stderr(environment, quiet=output.quiet, verbose=output.verbose):
        run_worker(settings, tell, _planner)
    return ExitCode.DONE


def _planner(request: RunRequest) -> Planner:
    from mrs.run.model_loader import ModelLoader

    return ModelLoader(request).planner
