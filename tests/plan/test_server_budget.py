"""A server's plan has the memory of its requests, and lowers it where the host has little."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path

import pytest

from mrs.plan.coexistence import reserved_bytes
from mrs.plan.memory.server_budget import BOUNDS, ServerBudget, server_budget
from mrs.plan.plan import Plan
from mrs.plan.report.document import to_document
from mrs.request import ServerLoad
from mrs.units import GIB, MIB

LOAD = ServerLoad()
FIXED = ("program", "connections", "texts")


def budget_of(plan: Plan) -> ServerBudget:
    assert plan.budget is not None
    return plan.budget


def test_each_part_says_what_it_bounds() -> None:
    assert list(BOUNDS) == [each.name for each in fields(ServerBudget)]


def test_a_server_needs_the_sum_of_all_parts_on_the_host(small_llama: Path, planner_of) -> None:
    planner, request = planner_of(small_llama, "cpu=64GiB")
    run = planner.plan(request)
    server = planner.plan(replace(request, server=LOAD))
    budget = budget_of(server)
    assert run.budget is None
    assert run.breakdowns[-1].request_bytes == 0
    assert sum(budget.parts.values()) == budget.total_bytes > 500 * MIB
    more = server.breakdowns[-1].total.high - run.breakdowns[-1].total.high
    assert more == budget.total_bytes
    assert server.host_bytes == server.breakdowns[-1].total.high + server.prefix_bytes[-1]


def test_the_document_has_the_sum_and_its_parts(small_llama: Path, planner_of) -> None:
    planner, request = planner_of(small_llama, "cuda:0=24GiB", "cpu=64GiB")
    served = planner.plan(replace(request, server=LOAD))
    document = json.loads(json.dumps(to_document(planner.plan(request), served=served)))["server"]
    assert document["host_bytes"] == served.host_bytes
    assert sum(part["bytes"] for part in document["parts"]) == document["requests_bytes"]
    assert to_document(planner.plan(request))["server"] is None


def test_flags_of_the_server_are_in_its_budget() -> None:
    def with_body(mebibytes: int) -> ServerBudget:
        return server_budget(ServerLoad(mebibytes * MIB, 100), 16, 4096, None)

    assert with_body(100).bodies == 2 * with_body(50).bodies
    assert with_body(50).connections < server_budget(LOAD, 16, 4096, None).connections


def test_a_host_with_little_memory_has_smaller_parts(small_llama: Path, planner_of) -> None:
    budgets = []
    for size in ("64GiB", "3GiB", "2GiB"):
        planner, request = planner_of(small_llama, f"cpu={size}")
        plan = planner.plan(replace(request, server=LOAD))
        assert plan.fits
        assert plan.host_bytes <= plan.breakdowns[-1].available_bytes
        budgets.append(budget_of(plan))
    for name in BOUNDS:
        sizes = [getattr(each, name) for each in budgets]
        assert sizes == sorted(sizes, reverse=True)
        assert (len(set(sizes)) == 1) == (name in FIXED or not sizes[0])


def test_a_server_without_memory_for_requests_does_not_fit(small_llama: Path, planner_of) -> None:
    planner, request = planner_of(small_llama, "cpu=64GiB")
    needed = planner.plan(request).breakdowns[-1].needed_bytes
    planner, request = planner_of(small_llama, f"cpu={needed // MIB + 200}MiB")
    assert planner.plan(request).fits
    assert not planner.plan(replace(request, server=LOAD)).fits


def test_layers_on_the_host_leave_room_for_requests(llama_70b: Path, planner_of) -> None:
    planner, request = planner_of(llama_70b, "cuda:0=80GiB", "cpu=100GiB")
    plan = planner.plan(replace(request, server=LOAD))
    assert plan.fits
    assert plan.host_bytes <= plan.breakdowns[-1].available_bytes


def test_models_of_one_server_share_what_is_not_of_a_model(small_llama: Path, planner_of) -> None:
    planner, request = planner_of(small_llama, "cpu=64GiB")
    plan = planner.plan(replace(request, server=LOAD))
    run = planner.plan(request)
    budget = budget_of(plan)
    more = reserved_bytes([plan])["cpu"] - reserved_bytes([run])["cpu"]
    assert more == budget.grammars + budget.prompts + budget.pixels


@pytest.mark.parametrize("sequences", [1, 16, 50])
def test_a_small_model_has_a_small_prefix_cache(
    small_llama: Path, planner_of, sequences: int
) -> None:
    planner, request = planner_of(small_llama, "cpu=64GiB", prefix_cache_n=sequences)
    plan = planner.plan(request)
    planned, longest = plan.workload.context_tokens, plan.model.context_tokens
    most = plan.kv_bytes_per_token * (sequences * planned + longest)
    assert plan.prefix_bytes[-1] == pytest.approx(most, rel=0.05)
    assert plan.prefix_bytes[-1] < 0.5 * plan.breakdowns[-1].free_bytes


def test_a_larger_prefix_cache_still_leaves_half_of_what_is_free(
    small_llama: Path, planner_of
) -> None:
    planner, request = planner_of(small_llama, "cpu=64GiB", prefix_cache_n=10**6)
    plan = planner.plan(request)
    assert plan.prefix_bytes[-1] == plan.breakdowns[-1].free_bytes // 2
    assert plan.prefix_bytes[-1] > 10 * GIB
