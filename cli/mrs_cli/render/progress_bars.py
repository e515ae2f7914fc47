"""Loading a model while showing how far it is."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from mrs.events import DISK, LoadProgress, OnProgress
from mrs.request import RunRequest
from mrs.source.address import model_name
from mrs_cli.environment import Environment, Model
from mrs_cli.exit import interruptible
from mrs_cli.render.safe_text import one_line

Result = TypeVar("Result")


def load_model(environment: Environment, request: RunRequest, *, quiet: bool) -> Model:
    """The loaded model: bars for each device on a terminal, then one summary line."""
    model = with_progress(
        environment,
        f"loading {model_name(request.source.model_id)}",
        lambda show: environment.load(request, show),
        quiet=quiet,
    )
    if not quiet:
        _say_summary(environment, one_line(model.summary))
    return model


def _say_summary(environment: Environment, summary: str) -> None:
    """One line; on a terminal several where it is narrow, broken between words."""
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
    from rich.progress import BarColumn, DownloadColumn, Progress, Task, TextColumn
    from rich.table import Column
    from rich.text import Text

    from mrs_cli.render.theme import console

    class Sizes(DownloadColumn):
        """The bytes that are there and all of them, once these are known."""

        def render(self, task: Task) -> Text:
            return Text() if task.total is None else super().render(task)

    screen = console(environment, environment.stderr)
    progress = Progress(
        TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis")),
        BarColumn(bar_width=max(4, min(32, screen.width - 40))),
        Sizes(binary_units=True, table_column=Column(no_wrap=True)),
        console=screen,
        transient=True,
    )
    with progress:
        waiting = progress.add_task(one_line(title), total=None)
        bars = {}

        def show(state: LoadProgress) -> None:
            progress.update(waiting, visible=False)
            if state.device not in bars:
                name = "download" if state.device == DISK else one_line(state.device)
                bars[state.device] = progress.add_task(name)
            progress.update(bars[state.device], completed=state.done_bytes, total=state.total_bytes)

        return work(show)
