"""What a format of `--isq` loses of a model: as measured here, or else as published for another."""

from __future__ import annotations

from typing import NamedTuple

from mrs.plan.plan import Plan
from mrs.plan.report.measured_losses import measured_loss
from mrs.plan.report.published_losses import published_loss

#: Weights as they are.
UNQUANTIZED = "none"


class Loss(NamedTuple):
    """The share by which a format raises perplexity; below 0 it lowers it.

    It `is_measured` of this model, by `mrs eval`, or else published for another one.
    """

    share: float
    is_measured: bool


def loss_of(isq: str, plan: Plan) -> Loss | None:
    """The loss of a format of `--isq`, or of `UNQUANTIZED`; None if it is not known."""
    measured = measured_loss(plan.model, None if isq == UNQUANTIZED else isq)
    if measured is not None:
        return Loss(measured.perplexity_change, True)
    share = 0.0 if isq == UNQUANTIZED else published_loss(isq, plan.model.parameters)
    return None if share is None else Loss(share, False)
