"""The choice of a format for each tensor within a budget of bytes."""

from __future__ import annotations

import itertools
import random

import pytest

from mrs.engine.sensitivity import windows
from mrs.formats import FORMATS
from mrs.quantization.bit_budget import Option, choose, least_bytes

NAMES = ("Q2_K", "Q4_0", "Q5_0", "Q6_K", "Q8_0")


def options(seed: int, tensors: int) -> dict[str, list[Option]]:
    """Tensors of different sizes, whose losses fall with their bytes, not always evenly."""
    random.seed(seed)
    found = {}
    for index in range(tensors):
        size, slope = random.choice((10, 40, 70)), random.uniform(0.01, 5)
        found[f"t{index}"] = [
            Option(FORMATS[name], size * bits, slope * random.uniform(0.5, 1.5) / 3**bits)
            for bits, name in enumerate(NAMES, start=2)
        ]
    return found


def loss(chosen: dict[str, Option]) -> float:
    return sum(each.loss for each in chosen.values())


def size(chosen: dict[str, Option]) -> int:
    return sum(each.size_bytes for each in chosen.values())


@pytest.mark.few(3)
@pytest.mark.parametrize("seed", range(12))
def test_no_choice_of_the_same_bytes_loses_less(seed: int) -> None:
    """What greedy steps choose with nothing left is the best of all choices."""
    some = options(seed, 5)
    least, most = least_bytes(some), sum(each[-1].size_bytes for each in some.values())
    exact = {size(choose(some, budget)) for budget in range(least, most + 1, 10)}
    combinations = [
        dict(zip(some, each, strict=True)) for each in itertools.product(*some.values())
    ]
    for budget in list(exact)[:6]:
        best = min(loss(each) for each in combinations if size(each) <= budget)
        found = choose(some, budget)
        assert size(found) <= budget
        step = max(
            loss(choose(some, smaller))
            for smaller in range(max(least, budget - 70), budget + 1, 10)
        )
        assert best - 1e-12 <= loss(found) <= step
    assert loss(choose(some, most)) == min(loss(each) for each in combinations)
    assert size(choose(some, least)) == least


def test_bytes_go_where_they_count() -> None:
    some = options(1, 2)
    sensitive = [Option(each.format, each.size_bytes, 100 * each.loss) for each in some["t0"]]
    half = (least_bytes(some) + sum(each[-1].size_bytes for each in some.values())) // 2
    usual, other = choose(some, half)["t0"], choose({**some, "t0": sensitive}, half)["t0"]
    assert other.size_bytes >= usual.size_bytes
    assert other.loss < 100 * some["t0"][0].loss


def test_a_format_that_loses_more_for_more_bytes_is_never_chosen() -> None:
    good, worse, best = (Option(FORMATS[n], *facts) for n, facts in
                         zip(NAMES, ((20, 1.0), (30, 2.0), (40, 0.1)), strict=False))  # fmt: skip
    for budget in (20, 30, 39, 40, 50):
        assert choose({"a": [good, worse, best]}, budget)["a"] is (good if budget < 40 else best)


@pytest.mark.parametrize("count", [1, 2, 3, 6, 7, 12, 30, 80])
def test_windows_of_layers(count: int) -> None:
    """Every layer once and in order; both ends in small windows."""
    names = [str(index) for index in range(count)]
    found = windows(names)
    assert [name for each in found for name in each] == names
    assert len(found[0]) == len(found[-1]) == 1
    assert max(map(len, found)) <= 6
