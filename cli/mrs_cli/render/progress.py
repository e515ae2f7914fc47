"""Loading a model while showing how far it is."""

from __future__ import annotations

from contextlib import suppress

from mrs.events import LoadProgress
from mrs.request import RunRequest
from mrs_cli.environment import Environment, Model
from mrs_cli.render.text import one_line


def load_model(environment: Environment, request: RunRequest, *, quiet: bool) -> Model:
    """The loaded model: bars for each device on a terminal, then one summary line."""
    if quiet:
        return environment.load(request)
    if environment.can_animate(environment.stderr):
        model = _with_bars(environment, request)
    else:
        model = environment.load(request)
    with suppress(OSError):
        environment.stderr.write(one_line(model.summary) + "\n")
        environment.stderr.flush()
    return model


def _with_bars(environment: Environment, request: RunRequest) -> Model:
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
        waiting = progress.add_task(one_line(f"loading {request.source.model_id}"), total=None)
        bars = {}

        def show(state: LoadProgress) -> None:
            progress.update(waiting, visible=False)
            if state.device not in bars:
                bars[state.device] = progress.add_task(one_line(state.device))
            progress.update(bars[state.device], completed=state.done_bytes, total=state.total_bytes)

        return environment.load(request, show)
