"""Which layers a rank gets."""

from __future__ import annotations

from itertools import combinations

import pytest

from mrs.distributed.placement import StageMemory, mapped_layers, split_layers
from mrs.errors import DoesNotFit, UsageError


@pytest.mark.parametrize("speeds", [(1, 1), (1, 3), (5, 1, 2), (1, 1, 1, 1), (9, 1, 1)])
def test_the_slowest_rank_is_as_fast_as_any_split_allows(speeds: tuple[int, ...]) -> None:
    sizes = [3, 1, 4, 1, 5, 9, 2, 6]
    ranks = [StageMemory(str(n), 100, speed, 2 if n == 0 else 0) for n, speed in enumerate(speeds)]

    def slowest(ranges: list[range]) -> float:
        return max(
            (sum(sizes[n] for n in layers) + rank.fixed_bytes) / rank.bytes_per_s
            for layers, rank in zip(ranges, ranks, strict=True)
        )

    every = []
    for cuts in combinations(range(1, len(sizes)), len(ranks) - 1):
        ends = [*cuts, len(sizes)]
        every.append([range(a, b) for a, b in zip([0, *cuts], ends, strict=True)])
    assert slowest(split_layers(sizes, ranks)) == min(map(slowest, every))


def test_memory_limits_a_fast_rank() -> None:
    ranks = [StageMemory("a", 3, 1.0), StageMemory("b", 2, 100.0)]
    assert split_layers([1, 1, 1, 1], ranks) in ([range(2), range(2, 4)], [range(3), range(3, 4)])
    with pytest.raises(DoesNotFit, match="do not fit into 2 processes"):
        split_layers([1] * 6, ranks)
    with pytest.raises(UsageError, match="1 layers cannot be split over 2"):
        split_layers([1], ranks)


def test_layers_are_given_by_hand() -> None:
    assert mapped_layers("0:3;1:2", 5, 2) == [range(3), range(3, 5)]
    for text in ("0:3", "0:3;1:1", "0:5;1:0", "0:3;2:2"):
        with pytest.raises(UsageError, match="rank:layers"):
            mapped_layers(text, 5, 2)
