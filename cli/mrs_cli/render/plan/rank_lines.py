"""What each of several processes that share all layers stores, as lines of text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from mrs.distributed.shard import available_bytes, needed_bytes
from mrs.units import human_bytes

if TYPE_CHECKING:
    from mrs.distributed.shard import RankPlan


def rank_lines(ranks: Sequence[RankPlan]) -> Iterator[str]:
    for number, rank in enumerate(ranks):
        total = rank.plan.breakdowns[0].total.expected
        yield (
            f"rank {number}: {human_bytes(rank.weight_bytes)} of weights and "
            f"{human_bytes(rank.kv_bytes)} of KV cache, {human_bytes(total)} in all"
        )
    if ranks:
        available = human_bytes(available_bytes(ranks))
        needed = human_bytes(needed_bytes(ranks))
        yield f"{len(ranks)} processes need {needed} of {available} together"


def ranks_document(ranks: Sequence[RankPlan]) -> list[dict[str, Any]]:
    return [
        {
            "weight_bytes": rank.weight_bytes,
            "kv_bytes": rank.kv_bytes,
            "total_bytes": rank.plan.breakdowns[0].total.expected,
        }
        for rank in ranks
    ]
