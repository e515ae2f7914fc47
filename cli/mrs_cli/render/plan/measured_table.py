"""Predicted and measured memory and speed, as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mrs.units import human_bytes, rounded_rate
from mrs_cli.render.safe_text import rate_range, table

if TYPE_CHECKING:
    from mrs.plan.plan import Plan
    from mrs.plan.report.reconcile import Reconciliation


def measured_table(plan: Plan, result: Reconciliation) -> list[str]:
    """A line for each term, and for each rate."""
    rows = [("device", "term", "predicted", "measured", "difference")]
    for row in result.rows:
        measured, difference = "not known", ""
        if row.measured_bytes is not None:
            measured = human_bytes(row.measured_bytes)
            difference = byte_difference(row.predicted_bytes, row.measured_bytes)
        rows.append((row.device, row.term, human_bytes(row.predicted_bytes), measured, difference))
    for name, predicted, rate in (
        ("prompt tokens/s", plan.speed.prompt, result.prompt_tokens_per_s),
        ("decode tokens/s", plan.speed.decode, result.decode_tokens_per_s),
    ):
        is_slower, is_faster = rate < predicted.low, rate > predicted.high
        difference = "slower" if is_slower else "faster" if is_faster else ""
        rows.append(
            ("", name, rate_range(predicted.low, predicted.high), rounded_rate(rate, 3), difference)
        )
    return table(rows, right=range(2, 5))


def byte_difference(predicted: int, measured: int) -> str:
    """Of the prediction from the measured value."""
    if not measured:
        return ""
    if predicted == measured:
        return "exact"
    return f"{100 * (predicted / measured - 1):+.1f} %"
