"""What fits which machine, as a table for people."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from mrs.plan.report.fit import untried
from mrs.units import human_bytes
from mrs_cli.environment import Environment
from mrs_cli.render.safe_text import rate_with_error, table

if TYPE_CHECKING:
    from mrs.plan.report.fit import FormatFit, MachineFit

HEADER = ("--isq", "weights", "context", "tokens/s", "first token", "loss")
#: Columns to the right of a format, from the least important, which narrow terminals leave out.
LEFT_OUT = (4, 1, 2)
#: The longest bar of a rate.
BAR_COLUMNS = 16
NOTE = (
    "first token: of a prompt of 2,000 tokens; loss: of perplexity, as published for Llama 3 in "
    "such formats (*: of this model, as mrs eval measured it)"
)


def fit_lines(environment: Environment, fits: Sequence[MachineFit]) -> Iterator[str]:
    """A row for each format of one machine, or for the best format of each of several."""
    columns = _columns(environment)
    yield from _narrowed(_with_bars(fits, fit_rows(fits), columns), columns)
    yield from needs_lines(fits)
    yield NOTE


def needs_lines(fits: Sequence[MachineFit]) -> Iterator[str]:
    """What is missing where no format fits that loses little, what is enough, what is untried."""
    for fit in fits:
        if needs := _needs(fit):
            yield f"{fit.name}: {needs}" if len(fits) > 1 else needs
    yield from untried(fits)


def _needs(fit: MachineFit) -> str:
    """What a format that loses little lacks, the machines that have it, and how fast they are."""
    if not fit.remedies:
        return fit.needs
    enough = (
        f"{each.machine} ({rate_with_error(each.plan.speed.decode)})" for each in fit.remedies
    )
    return f"{fit.needs}; enough: {' or '.join(enough)}"


def _columns(environment: Environment) -> int:
    """The width of a terminal; a pipe has room for everything."""
    if not environment.can_animate(environment.stdout):
        return sys.maxsize
    from mrs_cli.render.theme import console

    return console(environment, environment.stdout).width


def fit_rows(fits: Sequence[MachineFit]) -> list[tuple[str, ...]]:
    """The table: its headings, and a row for each format or machine."""
    if len(fits) == 1:
        (fit,) = fits
        marks = ("\u2192" if index == fit.best else "" for index in range(len(fit.formats)))
        rows = [(mark, *_cells(each)) for mark, each in zip(marks, fit.formats, strict=True)]
        return [("", *HEADER), *rows]
    return [("machine", *HEADER), *map(_machine_row, fits)]


def _machine_row(fit: MachineFit) -> tuple[str, ...]:
    if fit.best is None:
        return (fit.name, "none fits", *[""] * (len(HEADER) - 1))
    return (fit.name, *_cells(fit.formats[fit.best]))


def _with_bars(
    fits: Sequence[MachineFit], rows: list[tuple[str, ...]], columns: int
) -> list[tuple[str, ...]]:
    """The rows with a bar of the expected rate at their ends, on a terminal."""
    if columns == sys.maxsize:
        return rows
    shown: list[FormatFit | None] = list(fits[0].formats)
    if len(fits) > 1:
        shown = [None if fit.best is None else fit.formats[fit.best] for fit in fits]
    rates = [
        each.plan.speed.decode.expected if each is not None and each.plan.fits else 0.0
        for each in shown
    ]
    most = max(rates) or 1.0
    bars = ["\u2588" * max(round(BAR_COLUMNS * rate / most), rate > 0) for rate in rates]
    return [(*row, bar) for row, bar in zip(rows, ["", *bars], strict=True)]


def _cells(fit: FormatFit) -> tuple[str, ...]:
    weights = human_bytes(fit.plan.total_weight_bytes)
    loss = _loss(fit)
    if not fit.plan.fits:
        lacks = f"lacks {human_bytes(fit.plan.missing_bytes)}"
        return fit.isq, weights, "", lacks, "", loss
    context = "" if fit.longest_tokens is None else f"{fit.longest_tokens:,}"
    rate = rate_with_error(fit.plan.speed.decode).replace(" tokens/s", "")
    if fit.plan.spilled_layers:
        part = "" if fit.plan.has_spilled_layers else "experts of "
        rate += f" ({part}{fit.plan.spilled_layers} layers on CPU)"
    return fit.isq, weights, context, rate, _seconds(fit.first_token_s), loss


def _loss(fit: FormatFit) -> str:
    """The share by which perplexity is higher; measured ones are often smaller than 0.1 %."""
    if fit.loss is None:
        return ""
    if fit.loss.is_measured:
        return f"{100 * fit.loss.share:.2f} % *"
    return f"{100 * fit.loss.share:.1f} %" if fit.loss.share else "none"


def _seconds(seconds: float) -> str:
    return f"{seconds:.2g} s" if seconds < 100 else f"{seconds:,.0f} s"


def _narrowed(rows: list[tuple[str, ...]], columns: int) -> list[str]:
    """The lines of a table that is at most so wide, without its least important columns.

    Where names leave no room for that, they have lines of their own.
    """
    shown = list(range(len(rows[0])))
    has_bars = len(rows[0]) > 1 + len(HEADER)
    dropped = [column + 1 for column in LEFT_OUT]
    for index in (None, *([shown[-1]] if has_bars else []), *dropped):
        if index is not None:
            shown.remove(index)
        lines = _aligned(rows, shown)
        if max(map(len, lines)) <= columns:
            return lines
    if not any(row[0].strip("\u2192") for row in rows):
        return lines
    under = _aligned([("", *row[1:]) for row in rows], shown)
    return [
        line[:columns] for row, cells in zip(rows, under, strict=True) for line in (row[0], cells)
    ]


def _aligned(rows: list[tuple[str, ...]], shown: Sequence[int]) -> list[str]:
    right = [place for place, index in enumerate(shown) if 2 <= index <= len(HEADER)]
    return table([[row[index] for index in shown] for row in rows], right=right)
