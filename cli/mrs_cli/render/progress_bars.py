"""Progress bars: of loading, one for each device, and of work in steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

from mrs.events import DISK, LoadProgress, OnProgress
from mrs_cli.environment import Environment
from mrs_cli.render.error_lines import lines_by
from mrs_cli.render.safe_text import one_line
from mrs_cli.render.theme import console


class _SizeColumn(DownloadColumn):
    """The loaded and the total bytes, once the total is known."""

    def render(self, task: Task) -> Text:
        return Text() if task.total is None else super().render(task)


@contextmanager
def progress_bars(environment: Environment, title: str) -> Iterator[OnProgress]:
    """Shows `title`, then bars, on standard error; gives the function that moves the bars."""
    screen = console(environment, environment.stderr)
    progress = Progress(
        TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis")),
        BarColumn(bar_width=max(4, min(32, screen.width - 40))),
        _SizeColumn(binary_units=True, table_column=Column(no_wrap=True)),
        console=screen,
        transient=True,
    )
    bars: dict[str, TaskID] = {}
    with progress, lines_by(lambda line: screen.print(line, soft_wrap=True)):
        waiting = progress.add_task(one_line(title), total=None)

        def show(state: LoadProgress) -> None:
            progress.update(waiting, visible=False)
            if state.device not in bars:
                name = "download" if state.device == DISK else one_line(state.device)
                bars[state.device] = progress.add_task(name)
            progress.update(bars[state.device], completed=state.done_bytes, total=state.total_bytes)

        yield show


@contextmanager
def step_bar(environment: Environment, title: str) -> Iterator[Callable[[str, int, int], None]]:
    """Shows a bar with the time that is left; gives what sets its title, steps done and in all."""
    screen = console(environment, environment.stderr)
    progress = Progress(
        TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis")),
        BarColumn(bar_width=max(4, min(32, screen.width - 60))),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=screen,
        transient=True,
    )
    with progress, lines_by(lambda line: screen.print(line, soft_wrap=True)):
        bar = progress.add_task(one_line(title), total=None)
        earlier: list[int] = []

        def show(title: str, done: int, total: int) -> None:
            earlier.append(done)  # what was done before has taken no time now
            del earlier[1:]
            progress.update(
                bar,
                description=one_line(title),
                completed=done - earlier[0],
                total=total - earlier[0],
            )

        yield show


@contextmanager
def late_step_bar(
    environment: Environment, title: str
) -> Iterator[Callable[[str, int, int], None]]:
    """As `step_bar`, but the bar appears with the first step: others may be shown before."""
    with ExitStack() as stack:
        bars: list[Callable[[str, int, int], None]] = []

        def show(title_now: str, done: int, total: int) -> None:
            if not bars:
                bars.append(stack.enter_context(step_bar(environment, title)))
            bars[0](title_now, done, total)

        yield show
