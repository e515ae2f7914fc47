"""Past sequences get a part of what a plan leaves over, on each device."""

from __future__ import annotations

from types import SimpleNamespace

from mrs.plan.prefix import PREFIX_SHARE, prefix_budget_bytes


def test_a_share_of_what_is_left_on_each_device() -> None:
    places = [("cuda:0", 1000), ("cuda:1", -50), ("cpu", 300), ("cpu", 100)]
    plan = SimpleNamespace(
        devices=[SimpleNamespace(torch_device=name) for name, _ in places],
        terms=[SimpleNamespace(free_bytes=free) for _, free in places],
    )
    assert PREFIX_SHARE == 0.5
    assert prefix_budget_bytes(plan) == {"cuda:0": 500, "cuda:1": 0, "cpu": 200}
