"""Search for the request that still fits: lengths, batches, quantization formats."""

from __future__ import annotations

from collections.abc import Sequence

from mrs.plan.plan import Plan

#: Formats of `--isq` from the finest to the smallest.
ISQ_FORMATS = ("q8_0", "q6k", "q5k", "q4k", "q3k", "q2k")
#: The largest batch that the search considers.
MOST_SEQUENCES = 4096
#: Planned lengths are multiples of this.
LENGTH_STEP = 256


def best_format(tried: Sequence[tuple[str, Plan]]) -> tuple[str, Plan] | None:
    """The finest format that needs no layer on the CPU; `tried` is sorted from fine to small.

    If every format that fits needs some, the one with the fastest replies; None if no format fits.
    """
    fitting = [row for row in tried if row[1].fits]
    without_cpu = [row for row in fitting if not row[1].spilled_layers]
    if without_cpu:
        return without_cpu[0]
    return max(fitting, key=lambda row: row[1].speed.decode.expected, default=None)
