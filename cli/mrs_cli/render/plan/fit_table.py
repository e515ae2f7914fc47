"""What fits which machine, as a table for people."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from mrs.units import human_bytes
from mrs_cli.environment import Environment
from mrs_cli.render.safe_text import rate_with_error, table

if TYPE_CHECKING:
    from mrs.plan.report.fit import FormatFit, MachineFit

HEADER = ("--isq", "weights", "context", "tokens/s", "first token", "loss")
#: Columns to the right of a format, from the least important, which narrow terminals leave out.
LEFT_OUT = (4, 1, 2)
NOTE = (
    "first token: of a prompt of 2,000 tokens; loss: of perplexity, as published for Llama 3 in "
    "such formats"
)


def fit_lines(environment: Environment, fits: Sequence[MachineFit]) -> Iterator[str]:
    """A row for each format of one machine, or for the best format of each of several."""
    rows = list(_rows(fits))
    yield from _narrowed(rows, _columns(environment))
    for fit in fits:
        if needs := _needs(fit):
            yield f"{fit.name}: {needs}" if len(fits) > 1 else needs
    yield NOTE


def _needs(fit: MachineFit) -> str:
    """What a format that loses little lacks, the machines that have it, and how fast they are."""
    if not fit.remedies:
        return fit.needs
    enough = (
        f"{each.machine} ({rate_with_error(each.plan.speed.decode)})" for each in fit.remedies
    )
    return f"{fit.needs}; enough are {' or '.join(enough)}"


def _columns(environment: Environment) -> int:
    """The width of a terminal; a pipe has room for everything."""
    if not environment.can_animate(environment.stdout):
        return sys.maxsize
    from mrs_cli.render.theme import console

    return console(environment, environment.stdout).width


def _rows(fits: Sequence[MachineFit]) -> Iterator[tuple[str, ...]]:
    if len(fits) == 1:
        (fit,) = fits
        yield ("", *HEADER)
        for index, each in enumerate(fit.formats):
            yield ("\u2192" if index == fit.best else "", *_cells(each))
        return
    yield ("machine", *HEADER)
    for fit in fits:
        if fit.best is None:
            yield (fit.name, "none fits", *[""] * (len(HEADER) - 1))
        else:
            yield (fit.name, *_cells(fit.formats[fit.best]))


def _cells(fit: FormatFit) -> tuple[str, ...]:
    weights = human_bytes(fit.plan.total_weight_bytes)
    loss = "" if fit.loss is None else f"{100 * fit.loss:.1f} %" if fit.loss else "none"
    if not fit.plan.fits:
        lacks = f"lacks {human_bytes(fit.plan.missing_bytes)}"
        return fit.isq, weights, "", lacks, "", loss
    context = "" if fit.longest_tokens is None else f"{fit.longest_tokens:,}"
    rate = rate_with_error(fit.plan.speed.decode).replace(" tokens/s", "")
    if fit.plan.spilled_layers:
        rate += f" ({fit.plan.spilled_layers} layers on CPU)"
    return fit.isq, weights, context, rate, _seconds(fit.first_token_s), loss


def _seconds(seconds: float) -> str:
    return f"{seconds:.2g} s" if seconds < 100 else f"{seconds:,.0f} s"


def _narrowed(rows: list[tuple[str, ...]], columns: int) -> list[str]:
    """The lines of a table that is at most so wide, without its least important columns."""
    shown = list(range(len(rows[0])))
    for index in (None, *(column + 1 for column in LEFT_OUT)):
        if index is not None:
            shown.remove(index)
        lines = table([[row[i] for i in shown] for row in rows], right=range(2, len(shown)))
        if max(map(len, lines)) <= columns:
            break
    return lines
