"""Requests go where their first tokens are expected soonest."""

from __future__ import annotations

import pytest

from mrs.routing.prefix_chain import PrefixChain, chain_of
from mrs.routing.replica import Rates
from mrs.routing.router import Route, Router

RATES = Rates(prompt_tokens_per_s=1000.0, reply_s=2.0, slots=4, cache_tokens=100_000)
SYSTEM = "You are a helpful assistant. " * 300


def make_router(names: str = "abc", rates: Rates = RATES) -> Router:
    router = Router()
    for name in names:
        router.add(name, rates)
    return router


def routed(router: Router, chain: PrefixChain, now_s: float = 0.0, without: str = "") -> Route:
    route = router.route(chain, now_s, frozenset(without))
    assert route is not None
    return route


def test_a_conversation_has_the_links_of_its_earlier_turns() -> None:
    first, later = chain_of([SYSTEM, "hi"]), chain_of([SYSTEM, "hi", "hello", "more"])
    assert later.links[: len(first.links)] == first.links
    assert len(chain_of([SYSTEM, "ho"]).links) == len(first.links)
    assert chain_of([SYSTEM, "ho"]).links[-1] != first.links[-1]
    assert chain_of(["ab", "c"]).links[-1] != chain_of(["a", "bc"]).links[-1]
    assert chain_of([SYSTEM], salt="key").links[0] != chain_of([SYSTEM]).links[0]


def test_long_prompts_have_a_bounded_number_of_links() -> None:
    chain = chain_of(["x" * 4_000_000])
    assert len(chain.links) == 256
    assert chain.num_tokens == 1_000_000


def test_a_session_stays_where_its_cache_is() -> None:
    router = make_router()
    texts, names = [SYSTEM], []
    for turn in range(5):
        texts = [*texts, f"question {turn}"]
        route = routed(router, chain_of(texts), 10.0 * turn)
        names.append(route.replica.name)
        router.end(route, 10.0 * turn + 5)
    assert len(set(names)) == 1
    assert route.num_cached_tokens > 2000


def test_another_replica_reads_the_prefix_again_once_that_is_sooner() -> None:
    """The prompt takes 2.2 s to read; a queue of longer unrelated prompts is as long."""
    router = make_router("ab")
    first = routed(router, chain_of([SYSTEM]), 0.0)
    router.end(first, 5.0)
    home = first.replica
    short = routed(router, chain_of([SYSTEM, "x" * 400]), 10.0)
    assert short.replica is home
    home.free_s = 10.0 + 1.0
    waits = routed(router, chain_of([SYSTEM, "y" * 400]), 10.0)
    assert waits.replica is home, "it waits for less than the prefix saves"
    home.free_s = 10.0 + 5.0
    moved = routed(router, chain_of([SYSTEM, "z" * 400]), 10.0)
    assert moved.replica is not home


def test_requests_without_a_prefix_go_round() -> None:
    router = make_router()
    prompts = [chain_of([f"{number}" * 4000]) for number in range(6)]
    names = [routed(router, each).replica.name for each in prompts]
    assert sorted(names) == ["a", "a", "b", "b", "c", "c"]


def test_replies_in_all_slots_make_others_wait() -> None:
    router = make_router("ab", Rates(1e9, 2.0, 1, 100_000))
    routes = [routed(router, chain_of([SYSTEM, f"{number}"])) for number in range(2)]
    assert {route.replica.name for route in routes} == {"a", "b"}


def test_a_replica_that_is_lost_gets_nothing_more() -> None:
    router = make_router("ab")
    first = routed(router, chain_of([SYSTEM]), 0.0)
    router.remove(first.replica.name)
    again = routed(router, chain_of([SYSTEM]))
    assert again.replica is not first.replica
    router.end(first, 5.0)
    router.remove(again.replica.name)
    assert router.route(chain_of([SYSTEM]), 0.0) is None


def test_a_replica_that_did_not_answer_is_left_out() -> None:
    router = make_router("ab")
    first = routed(router, chain_of([SYSTEM]), 0.0)
    again = routed(router, chain_of([SYSTEM]), without=first.replica.name)
    assert again.replica is not first.replica
    assert router.route(chain_of([SYSTEM]), 0.0, frozenset("ab")) is None
    assert router.route(chain_of([SYSTEM]), 0.0) is not None


def test_what_a_router_remembers_of_caches_is_bounded_as_they_are() -> None:
    router = make_router("a", Rates(1000.0, 2.0, 4, cache_tokens=5000))
    for number in range(50):
        route = routed(router, chain_of([f"{number} " * 2000]), 0.0)
        router.end(route, 0.0)
    replica = route.replica
    assert replica.num_cached_tokens == sum(replica.cached.values()) <= 5000
    assert len(router._holders) == len(replica.cached)
    assert len(router._ready) < 100


def test_a_replica_is_free_once_its_first_tokens_have_come() -> None:
    router = make_router("a")
    prompts = [chain_of([f"{number} " * 2000]) for number in range(2)]
    first, second = (routed(router, each) for each in prompts)
    assert second.forecast_s > 1.9 * first.forecast_s
    router.begin(first, 0.01)
    assert first.replica.ready_s == pytest.approx(0.01 + second.read_s)
    router.end(second, 0.02)
    assert first.replica.ready_s == pytest.approx(0.02)
    router.end(first, 0.03)
    assert first.replica.queued_s == 0
    assert first.replica.num_running == 0


def test_forecasts_learn_from_first_tokens() -> None:
    router = make_router("a")
    for number in range(50):
        now_s = 100.0 * number
        route = routed(router, chain_of([f"{number} " * 2000]), now_s)
        router.begin(route, now_s + 0.003 * route.num_tokens)
        router.end(route, now_s + 90)
    assert abs(route.replica.read_s(1000) - 3.0) < 0.1
