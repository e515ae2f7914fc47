"""All kinds of hostile requests, in an order and with values that a seed decides."""

from __future__ import annotations

import random
from collections.abc import Iterator

from support.hostile import bodies, fields, grammars, heads, images, texts, tools
from support.hostile.request import HostileRequest

MAKERS = (
    *texts.MAKERS,
    *bodies.MAKERS,
    *images.MAKERS,
    *grammars.MAKERS,
    *tools.MAKERS,
    *fields.MAKERS,
    *heads.MAKERS,
)


def hostile_requests(count: int, seed: int) -> Iterator[HostileRequest]:
    """`count` requests; each maker is used as often as any other, at most once more or less.

    Made one at a time, since some have many megabytes.
    """
    chance = random.Random(seed)
    for start in range(0, count, len(MAKERS)):
        makers = chance.sample(MAKERS, len(MAKERS))
        for number, make in enumerate(makers[: count - start], start):
            yield make(random.Random(f"{seed} {number}"))
