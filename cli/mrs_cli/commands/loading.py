"""Loading a model, with progress on the terminal."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from mrs.distributed.peer_variables import SEVERAL_MACHINES
from mrs.events import OnProgress
from mrs.request import RunRequest
from mrs.source.address import model_name
from mrs_cli.environment import Environment, Model
from mrs_cli.exit import interruptible
from mrs_cli.render.safe_text import one_line

Result = TypeVar("Result")


def load_model(environment: Environment, request: RunRequest, *, quiet: bool) -> Model:
    """The loaded model; its summary is printed on standard error."""
    if any(name in environment.variables for name in ("MASTER_ADDR", *SEVERAL_MACHINES)):
        from mrs_cli.commands.worker import launched_request

        request = launched_request(environment, request)
    model = with_progress(
        environment,
        f"loading {model_name(request.source.model_id)}",
        lambda on_progress: environment.load(request, on_progress),
        quiet=quiet,
    )
    if request.cluster is not None:
        from mrs_cli.commands.peer_failure import end_with_peers

        end_with_peers(environment, model)
    if not quiet:
        show_summary(environment, model.summary)
    return model


def show_summary(environment: Environment, summary: str) -> None:
    """One line on standard error; a terminal breaks it between words."""
    summary = one_line(summary)
    with suppress(OSError):
        if environment.can_animate(environment.stderr):
            from mrs_cli.render.theme import console

            console(environment, environment.stderr).print(summary, overflow="ellipsis")
        else:
            environment.stderr.write(summary + "\n")
        environment.stderr.flush()


def with_progress(
    environment: Environment,
    title: str,
    work: Callable[[OnProgress | None], Result],
    *,
    quiet: bool,
) -> Result:
    """The result of `work`; a terminal shows a progress bar for each device meanwhile."""
    with interruptible(environment):
        if quiet or not environment.can_animate(environment.stderr):
            return work(None)
        from mrs_cli.render.progress_bars import progress_bars

        with progress_bars(environment, title) as on_progress:
            return work(on_progress)
