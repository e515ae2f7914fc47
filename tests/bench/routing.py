"""Simulates a fleet of replicas: `python tests/bench/routing.py [REPLICAS] [SESSIONS] [LOAD]`.

Conversations come at random, share system prompts, think between turns, and go back now and then.
Each replica reads prompts one after another and writes several replies at once, with the times of
`RATES`; its prefix cache drops what was used longest ago. Four rules choose replicas: at random,
the fewest requests, always the longest prefix, and `mrs.routing`. Printed are the times of first
tokens, the share of prompt tokens that were cached, the highest number of requests a replica had,
and what a decision takes.
"""

from __future__ import annotations

import heapq
import random
import sys
import time
from collections import OrderedDict
from dataclasses import dataclass, field

from mrs.routing.prefix_chain import Link, PrefixChain
from mrs.routing.replica import Rates
from mrs.routing.router import Route, Router

#: Of an 8 B model on one GPU: tokens of prompts a second, the time of a reply, replies at once,
#: tokens of the prefix cache.
RATES = Rates(prompt_tokens_per_s=8000.0, reply_s=4.0, slots=32, cache_tokens=200_000)
_TOKEN_S, _ROW_S = 0.012, 0.0004
_THINK_S, _TURNS, _BRANCHES = 30.0, 5, 0.15
_PIECE_TOKENS = 512
_SYSTEMS = 400


@dataclass
class Session:
    """A conversation so far: the links of its prompts and replies."""

    rng: random.Random
    links: list[Link]
    left: int

    def prompt(self) -> PrefixChain:
        """The next prompt, of what was said and a new message."""
        if len(self.links) > 2 and self.rng.random() < _BRANCHES:
            del self.links[self.rng.randrange(1, len(self.links)) :]
        self.say(min(int(self.rng.lognormvariate(5, 1.2)) + 10, 20_000))
        return PrefixChain(tuple(self.links), self.links[-1].num_tokens)

    def say(self, num_tokens: int) -> None:
        while num_tokens > 0:
            length = min(num_tokens, _PIECE_TOKENS)
            end = (self.links[-1].num_tokens if self.links else 0) + length
            self.links.append(Link(self.rng.randbytes(8), end))
            num_tokens -= length


@dataclass(eq=False)
class Machine:
    """A replica as it is, whatever a router thinks of it."""

    name: str
    free_s: float = 0.0
    running: int = 0
    cached: OrderedDict[bytes, int] = field(default_factory=OrderedDict)
    num_cached: int = 0

    def prefix(self, chain: PrefixChain) -> int:
        num_tokens = 0
        for key, end in chain.links:
            if key not in self.cached:
                break
            num_tokens = end
        return num_tokens

    def keep(self, links: list[Link]) -> None:
        before, lengths = 0, []
        for key, end in links:
            lengths.append((key, end - before))
            before = end
        for key, length in reversed(lengths):
            if key in self.cached:
                self.cached.move_to_end(key)
            else:
                self.cached[key] = length
                self.num_cached += length
        while self.num_cached > RATES.cache_tokens:
            self.num_cached -= self.cached.popitem(last=False)[1]


class Rule:
    """Chooses a machine; told when first tokens come and requests end."""

    def __init__(self, machines: list[Machine], seed: int = 0) -> None:
        self.machines = machines
        self.rng = random.Random(seed)

    def choose(self, chain: PrefixChain, now_s: float) -> tuple[Machine, Route | None]:
        raise NotImplementedError

    def begin(self, route: Route | None, now_s: float) -> None:
        pass

    def end(self, route: Route | None, now_s: float) -> None:
        pass


class AtRandom(Rule):
    def choose(self, chain: PrefixChain, now_s: float) -> tuple[Machine, Route | None]:
        return self.rng.choice(self.machines), None


class FewestRequests(Rule):
    def choose(self, chain: PrefixChain, now_s: float) -> tuple[Machine, Route | None]:
        least = min(each.running for each in self.machines)
        return self.rng.choice([each for each in self.machines if each.running == least]), None


class LongestPrefix(Rule):
    """The machine that had the longest prefix last; the one with the fewest requests for none."""

    def __init__(self, machines: list[Machine]) -> None:
        super().__init__(machines)
        self._last: dict[bytes, Machine] = {}

    def choose(self, chain: PrefixChain, now_s: float) -> tuple[Machine, Route | None]:
        found = None
        for key, _ in reversed(chain.links):
            if (found := self._last.get(key)) is not None:
                break
        if found is None:
            found = min(self.rng.sample(self.machines, min(8, len(self.machines))),
                        key=lambda each: each.running)  # fmt: skip
        for key, _ in chain.links:
            self._last[key] = found
        return found, None


class Forecast(Rule):
    def __init__(self, machines: list[Machine]) -> None:
        super().__init__(machines)
        self._router = Router()
        self._by_name = {each.name: each for each in machines}
        for each in machines:
            self._router.add(each.name, RATES)

    def choose(self, chain: PrefixChain, now_s: float) -> tuple[Machine, Route | None]:
        route = self._router.route(chain, now_s)
        assert route is not None
        return self._by_name[route.replica.name], route

    def begin(self, route: Route | None, now_s: float) -> None:
        if route is not None:
            self._router.begin(route, now_s)

    def end(self, route: Route | None, now_s: float) -> None:
        if route is not None:
            self._router.end(route, now_s)


def simulate(kind: type[Rule], replicas: int, sessions: int, load: float) -> str:
    rng = random.Random(1)
    machines = [Machine(f"r{number}") for number in range(replicas)]
    rule = kind(machines)
    systems = [Session(random.Random(number), [], 0) for number in range(_SYSTEMS)]
    for each in systems:
        each.say(each.rng.randrange(200, 4000))
    # A request that finds nothing cached takes about this long of a replica's reading.
    request_s = 2500 / RATES.prompt_tokens_per_s
    apart_s = _TURNS * request_s / (replicas * load)
    events: list[tuple[float, int, str, object]] = []
    count = 0

    def at(time_s: float, what: str, value: object) -> None:
        nonlocal count
        count += 1
        heapq.heappush(events, (time_s, count, what, value))

    at(0.0, "come", sessions)
    firsts: list[float] = []
    replies_s = 0.0
    asked = cached = most = 0
    decisions_s = 0.0
    now_s = 0.0
    while events:
        now_s, _, what, value = heapq.heappop(events)
        if what == "come":
            assert isinstance(value, int)
            start = systems[min(int(rng.paretovariate(0.7)) - 1, _SYSTEMS - 1)]
            session = Session(
                random.Random(rng.random()), list(start.links), 1 + int(rng.expovariate(1 / _TURNS))
            )
            at(now_s, "ask", session)
            if value > 1:
                at(now_s + rng.expovariate(1 / apart_s), "come", value - 1)
        elif what == "ask":
            assert isinstance(value, Session)
            chain = value.prompt()
            begin_s = time.thread_time()
            machine, route = rule.choose(chain, now_s)
            decisions_s += time.thread_time() - begin_s
            has = machine.prefix(chain)
            asked, cached = asked + chain.num_tokens, cached + has
            read_s = (chain.num_tokens - has) / RATES.prompt_tokens_per_s
            excess = max(machine.running + 1 - RATES.slots, 0)
            wait_s = excess * RATES.reply_s / RATES.slots
            machine.free_s = max(machine.free_s, now_s + wait_s) + read_s
            machine.running += 1
            most = max(most, machine.running)
            machine.keep(value.links)
            firsts.append(machine.free_s - now_s)
            at(machine.free_s, "begin", route)
            num_tokens = min(int(value.rng.lognormvariate(5, 0.8)) + 1, 4000)
            end_s = machine.free_s + num_tokens * (_TOKEN_S + _ROW_S * machine.running)
            replies_s += end_s - machine.free_s
            at(end_s, "end", (value, machine, route, num_tokens))
        elif what == "begin":
            assert value is None or isinstance(value, Route)
            rule.begin(value, now_s)
        else:
            session, machine, route, num_tokens = value  # type: ignore[misc]
            machine.running -= 1
            session.say(num_tokens)
            machine.keep(session.links)
            rule.end(route, now_s)
            session.left -= 1
            if session.left > 0:
                at(now_s + session.rng.expovariate(1 / _THINK_S), "ask", session)
    firsts.sort()
    half, late = firsts[len(firsts) // 2], firsts[int(0.95 * len(firsts))]
    return (
        f"{kind.__name__:15} {len(firsts):9,} requests in {now_s:8,.0f} s, first token {half:7.3f}"
        f" s, 95 % {late:8.3f} s, cached {cached / asked:5.1%}, reply"
        f" {replies_s / len(firsts):5.2f} s, at most {most:5} at once,"
        f" {1e6 * decisions_s / len(firsts):6.1f} us a decision"
    )


if __name__ == "__main__":
    numbers = sys.argv[1:]
    replicas, sessions = (int(each) for each in (numbers + ["16", "2000"][len(numbers) :])[:2])
    load = float(numbers[2]) if len(numbers) > 2 else 0.7
    for kind in (AtRandom, FewestRequests, LongestPrefix, Forecast):
        print(simulate(kind, replicas, sessions, load), flush=True)
