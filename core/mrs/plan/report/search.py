"""Search for the request that still fits: lengths, batches, levels of quantization."""

from __future__ import annotations

from collections.abc import Sequence

from mrs.plan.plan import Plan

#: Levels of `--isq` from the finest to the smallest.
ISQ_LEVELS = ("q8_0", "q6k", "q5k", "q4k", "q3k", "q2k")
#: The largest batch that the search considers.
MOST_SEQUENCES = 4096
#: Planned lengths are multiples of this.
LENGTH_STEP = 256


def best_level(tried: Sequence[tuple[str, Plan]]) -> tuple[str, Plan] | None:
    """The finest level that needs no layer on the CPU; `tried` goes from the finest to the smallest.

    If every level that fits needs some, the one with the fastest replies; None if no level fits.
    """
    fitting = [row for row in tried if row[1].fits]
    without_cpu = [row for row in fitting if not row[1].spilled_layers]
    if without_cpu:
        return without_cpu[0]
    return max(fitting, key=lambda row: row[1].speed.decode, default=None)
