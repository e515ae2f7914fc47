"""Search for the quantization that still fits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from mrs.plan.plan import Plan
from mrs.plan.planner import Planner
from mrs.plan.report.losses import UNQUANTIZED, loss_of
from mrs.plan.report.published_losses import MOST_LOSS
from mrs.request import RunRequest

#: Formats of `--isq` from the finest to the smallest.
ISQ_FORMATS = ("q8_0", "q6k", "q5k", "q4k", "q3k", "q2k")
#: The largest batch that the search considers.
MOST_SEQUENCES = 4096
#: Planned lengths are multiples of this.
LENGTH_STEP = 256


def best_format(tried: Sequence[tuple[str, Plan]]) -> tuple[str, Plan] | None:
    """The finest format that loses little and needs no layer on the CPU; None if no format fits.

    Where there is none: the one with the fastest replies among those that lose little, else the
    finest without layers on the CPU, else the fastest. `tried` is sorted from fine to small.
    """
    fitting = [row for row in tried if row[1].fits]
    good = [row for row in fitting if loses_little(*row)]
    for rows in (good, fitting):
        if whole := [row for row in rows if not row[1].spilled_layers]:
            return whole[0]
        if rows:
            return max(rows, key=lambda row: row[1].speed.decode.expected)
    return None


def loses_little(isq: str, plan: Plan) -> bool:
    """Whether a format raises perplexity by little; those of which nothing is known do."""
    loss = loss_of(isq, plan)
    return loss is None or loss.share <= MOST_LOSS


def loss_text(isq: str, plan: Plan) -> str:
    """What a format loses, as the end of a line, if that is much."""
    loss = loss_of(isq, plan)
    if loss is None or loss.share <= MOST_LOSS:
        return ""
    return f", perplexity +{100 * loss.share:.0f} %"


def planned_formats(planner: Planner, request: RunRequest) -> Iterator[tuple[str, Plan]]:
    """Plans of the `--isq` formats from fine to small that make the weights smaller each."""
    smallest_bytes = None
    for isq in (UNQUANTIZED, *ISQ_FORMATS):
        plan = planner.plan(with_isq(request, isq))
        if smallest_bytes is None or plan.total_weight_bytes < smallest_bytes:
            smallest_bytes = plan.total_weight_bytes
            yield isq, plan


def with_isq(request: RunRequest, isq: str) -> RunRequest:
    """The request with a format of `--isq`, or with weights as they are."""
    return replace(request, isq=None if isq == UNQUANTIZED else isq)
