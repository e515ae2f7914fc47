"""The result of `mrs eval` as a table."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from math import floor, log10
from typing import TYPE_CHECKING

from mrs.units import human_bytes
from mrs_cli.environment import Environment
from mrs_cli.render.safe_text import one_line, table

if TYPE_CHECKING:
    from mrs.run.evaluation.evaluate import Report, Result
    from mrs.run.evaluation.summary import Figure

#: Columns with a reference, and those that narrow terminals leave out, in this order.
HEADER = ("--isq", "weights", "perplexity", "change, %", "divergence, nats", "median", "90 %",
          "99 %", "most", "same token, %")  # fmt: skip
LEFT_OUT = (8, 6, 5, 1, 7, 3)


def eval_lines(environment: Environment, report: Report) -> Iterator[str]:
    """What was computed, a row for each setting, and what the columns are."""
    yield one_line(
        f"{report.scored_tokens:,} tokens of {report.work.title}, in {report.windows} windows of "
        f"{report.work.context_tokens}"
    )
    if report.reference_perplexity is not None:
        exact = " (its own weights in float32)" if report.reference == "exact" else ""
        yield one_line(
            f"reference: {report.reference}{exact}, perplexity "
            f"{with_error(report.reference_perplexity)}"
        )
    yield ""
    rows = [HEADER, *map(_cells, report.results)]
    shown = list(range(len(HEADER) if report.reference_perplexity is not None else 3))
    lines = _aligned(rows, shown)
    for column in LEFT_OUT:
        if max(map(len, lines)) <= _columns(environment):
            break
        if column in shown:
            shown.remove(column)
            lines = _aligned(rows, shown)
    yield from lines
    if report.windows > 1:
        yield ""
        yield "\u00b1: standard error, by the differences between windows"


def _columns(environment: Environment) -> int:
    """The width of a terminal; a pipe has room for everything."""
    if not environment.can_animate(environment.stdout):
        return sys.maxsize
    from mrs_cli.render.theme import console

    return console(environment, environment.stdout).width


def _aligned(rows: list[tuple[str, ...]], shown: list[int]) -> list[str]:
    return table([[row[index] for index in shown] for row in rows], right=range(1, len(shown)))


def _cells(result: Result) -> tuple[str, ...]:
    own = result.setting.name, human_bytes(result.weight_bytes), with_error(result.perplexity)
    found = result.divergence
    if found is None:
        return *own, *[""] * (len(HEADER) - len(own))
    return (
        *own,
        with_error(found.change.scaled(100)),
        *map(with_error, (found.mean, found.median, found.percentile_90, found.percentile_99)),
        f"{found.most:.2g}",
        with_error(found.same.scaled(100)),
    )


def with_error(figure: Figure) -> str:
    """The figure with two digits of its standard error: `17.42 ± 0.31`."""
    if figure.error is None:
        return f"{figure.value:.4g}"
    if figure.error == 0:
        return f"{figure.value:.4g} \u00b1 0"
    digits = 1 - floor(log10(figure.error))
    if digits > 5:  # such figures are read more easily as powers
        power = floor(log10(abs(figure.value))) if figure.value else -digits
        places = max(0, digits + power)
        value, error = figure.value / 10.0**power, figure.error / 10.0**power
        return f"({value:.{places}f} \u00b1 {error:.{places}f})e{power}"
    digits = max(0, digits)
    return f"{figure.value:.{digits}f} \u00b1 {figure.error:.{digits}f}"
