"""Loading a model while showing how far it is."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from mrs.events import LoadProgress, OnProgress
from mrs.request import RunRequest
from mrs_cli.ending import interruptible
from mrs_cli.environment import Environment, Model
from mrs_cli.render.text import one_line

Result = TypeVar("Result")


def load_model(environment: Environment, request: RunRequest, *, quiet: bool) -> Model:
    """The loaded model: bars for each device on a terminal, then one summary line."""
    model = with_progress(
        environment,
        f"loading {request.source.model_id}",
        lambda show: environment.load(request, show),
        quiet=quiet,
    )
    if not quiet:
        with suppress(OSError):
            environment.stderr.write(one_line(model.summary) + "\n")
            environment.stderr.flush()
    return model


def with_progress(
    environment: Environment,
    title: str,
    work: Callable[[OnProgress | None], Result],
    *,
    quiet: bool,
) -> Result:
    """The result of `work`, with a bar for each device on a terminal while it loads."""
    with interruptible(environment):
        if quiet or not environment.can_animate(environment.stderr):
            return work(None)
        return _with_bars(environment, title, work)


def _with_bars(
    environment: Environment,
    title: str,
    work: Callable[[OnProgress | None], Result],
) -> Result:
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    from mrs_cli.render.theme import console

    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=32),
        DownloadColumn(binary_units=True),
        console=console(environment, environment.stderr),
        transient=True,
    )
    with progress:
        waiting = progress.add_task(one_line(title), total=None)
        bars = {}

        def show(state: LoadProgress) -> None:
            progress.update(waiting, visible=False)
            if state.device not in bars:
                bars[state.device] = progress.add_task(one_line(state.device))
            progress.update(bars[state.device], completed=state.done_bytes, total=state.total_bytes)

        return work(show)
