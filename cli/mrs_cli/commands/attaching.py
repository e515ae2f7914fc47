"""Attaching: a running server of this user answers a run that would load the same model."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from mrs.distributed.peer_variables import SEVERAL_MACHINES
from mrs.errors import NotReadable
from mrs.request import RunRequest
from mrs_cli.commands.loading import show_summary
from mrs_cli.commands.run_task import RunTask
from mrs_cli.commands.running_servers import sockets
from mrs_cli.environment import Environment

if TYPE_CHECKING:
    from mrs.attach.attached_model import AttachedModel

_logger = logging.getLogger("mrs")


def attached_model(environment: Environment, task: RunTask) -> AttachedModel | None:
    """The model of a server that answers as this run would itself; None to load it.

    With --attach require, raises NotReadable without such a server.
    """
    if task.attach == "never":
        return None
    reasons = []
    for found in answers(environment, task.request):
        if not isinstance(found, str):
            _logger.info("attached to %s (pid %d)", found.url, found.pid)
            if not task.output.quiet:
                show_summary(environment, found.summary)
            return found
        reasons.append(found)
    if task.attach == "require":
        raise NotReadable(
            "no server of yours answers for this run",
            where="; ".join(reasons) or "none runs",
            hint="mrs ps lists them; mrs serve -m ID starts one",
        )
    for reason in reasons:
        _logger.info("not attached: %s", reason)
    return None


def answers(environment: Environment, request: RunRequest) -> Iterator[AttachedModel | str]:
    """What each server of this user says: its model, or why it does not answer the request."""
    paths = sockets()
    if not paths:
        return
    if any(name in environment.variables for name in ("MASTER_ADDR", *SEVERAL_MACHINES)):
        yield "this process is one of several"
        return
    from mrs.attach.attached_model import attach
    from mrs.attach.same_run import run_identity

    identity = run_identity(request)
    if identity is None:
        yield "the model is not downloaded"
        return
    for path in paths:
        found = attach(path, identity)
        yield f"pid {path.stem}: {found}" if isinstance(found, str) else found
