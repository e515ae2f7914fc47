"""Past sequences get a part of what a plan leaves over, on each device that holds layers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mrs.errors import UsageError
from mrs.plan.memory.prefix_budget import PREFIX_SHARE, folder_bytes
from mrs.request import ModelSource, RunRequest
from mrs.units import GIB

DEVICES = ("cuda:0=80GiB", "cuda:1=100GiB", "cuda:2=80GiB", "cpu=64GiB")


def test_a_share_of_what_is_left_on_each_device(llama_70b: Path, planner_of) -> None:
    planner, request = planner_of(llama_70b, *DEVICES)
    plan = planner.plan(request)
    assert PREFIX_SHARE == 0.5
    assert [terms.layers > 0 for terms in plan.breakdowns] == [True, True, False, False]
    halves = [terms.free_bytes // 2 for terms in plan.breakdowns[:2]]
    assert min(halves) > 0
    assert plan.prefix_bytes == (*halves, 0, 0)
    assert plan.prefix_budgets() == dict(zip(("cuda:0", "cuda:1"), halves, strict=True))


def test_nothing_is_left_where_memory_lacks(llama_70b: Path, planner_of) -> None:
    planner, request = planner_of(llama_70b, "cuda:0=40GiB", "cpu=32GiB")
    assert planner.plan(request).prefix_bytes[1] == 0


@pytest.mark.parametrize("wishes", [{"prefix_cache_n": 0}, {"kv_cache": False}])
def test_nothing_is_kept_where_nobody_wants_it(
    llama_70b: Path, planner_of, wishes: dict[str, Any]
) -> None:
    planner, request = planner_of(llama_70b, *DEVICES, **wishes)
    assert not any(planner.plan(request).prefix_bytes)


def test_logical_devices_share_what_they_stand_for(
    llama_70b: Path, planner_of, monkeypatch: pytest.MonkeyPatch
) -> None:
    planner, request = planner_of(llama_70b, "cuda:0=80GiB", "cuda:1=80GiB", "cpu=8GiB")
    planner.devices = [replace(device, torch_device="cpu") for device in planner.devices]
    plan = planner.plan(request)
    assert min(plan.prefix_bytes[:2]) > 0
    assert plan.prefix_budgets() == {"cpu": sum(plan.prefix_bytes)}


@pytest.mark.parametrize(("size", "size_bytes"), [("1GiB", GIB), ("0", 0), ("10TiB", 10 << 40)])
def test_a_given_size_is_the_most_on_all_devices_together(
    llama_70b: Path, planner_of, size: str, size_bytes: int
) -> None:
    planner, request = planner_of(llama_70b, *DEVICES, prefix_cache_size=size)
    plan = planner.plan(request)
    free = [terms.free_bytes for terms in plan.breakdowns[:2]]
    first = min(free[0], size_bytes)
    assert plan.prefix_bytes == (first, min(free[1], size_bytes - first), 0, 0)
    several = planner.plan(replace(request, max_models=2))
    assert 2 * sum(several.prefix_bytes) <= sum(plan.prefix_bytes)


def test_a_size_that_is_none_is_refused(llama_70b: Path, planner_of) -> None:
    planner, request = planner_of(llama_70b, *DEVICES, prefix_cache_size="much")
    with pytest.raises(UsageError, match="'much' is not a size"):
        planner.plan(request)


def kept(**wishes: Any) -> int | None:
    return folder_bytes(RunRequest(ModelSource("m", "safetensors"), **wishes))


def test_files_take_what_is_said_or_four_gib() -> None:
    assert kept() is None
    assert kept(prefix_cache_dir="d") == 4 * 1024**3
    assert kept(prefix_cache_dir="d", prefix_cache_dir_size="512MiB") == 512 * 1024**2


@pytest.mark.parametrize(
    ("wishes", "words"),
    [
        ({"prefix_cache_dir": ""}, "--prefix-cache-dir is empty"),
        ({"prefix_cache_dir_size": "a lot"}, "'a lot' is not a size"),
        ({"prefix_cache_n": 0}, "the prefix cache is off: nothing to store in d"),
        ({"kv_cache": False}, "the prefix cache is off: nothing to store in d"),
    ],
)
def test_a_folder_that_could_hold_nothing_is_refused(wishes: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        kept(**{"prefix_cache_dir": "d", **wishes})
