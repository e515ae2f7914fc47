"""What may be spent on remembering past sequences: memory that a plan leaves over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from mrs.plan.plan import Plan

#: The part of what is left over that past sequences may take; the rest stays for others.
PREFIX_SHARE = 0.5


def prefix_budget_bytes(plan: Plan) -> Mapping[str, int]:
    """Bytes by torch device, beside the caches of running sequences that the plan counts."""
    budget: Counter[str] = Counter()
    for device, terms in zip(plan.devices, plan.terms, strict=True):
        budget[device.torch_device] += int(PREFIX_SHARE * max(terms.free_bytes, 0))
    return budget
