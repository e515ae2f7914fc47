"""Sends each request to the replica from which its first token is expected soonest.

That is the one whose cache has most of the prompt, unless another one is free so much sooner that
it reads the rest of the prompt in the meantime. Replies that run on a replica count a little.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from mrs.routing.prefix_chain import PrefixChain
from mrs.routing.replica import Pace, Rates, Replica

#: Of those that have the longest prefix, so many are looked at: half of them were used longest ago,
#: half most recently. All may have a prompt that all requests begin with.
_MOST_HOLDERS = 8


@dataclass(eq=False)
class Route:
    """A request on its way: where it goes, and what was forecast for its first token."""

    replica: Replica
    num_tokens: int
    num_cached_tokens: int
    forecast_s: float
    start_s: float
    #: How long its prompt is expected to be read.
    read_s: float
    has_begun: bool = False


class Router:
    """Routes requests to replicas. A decision takes as long for a thousand as for ten."""

    def __init__(self) -> None:
        #: Those that requests may go to, by name.
        self.replicas: dict[str, Replica] = {}
        #: Which replicas have a link's prefix: least recently used first.
        self._holders: dict[bytes, dict[Replica, None]] = {}
        #: Replicas by when they are ready. Each has a newer entry after each change.
        self._ready: list[tuple[float, int, Replica]] = []
        self._entries: dict[Replica, int] = {}
        self._count = itertools.count()
        self._fleet = Pace()

    def add(self, name: str, rates: Rates) -> None:
        """Let requests go to a replica, whose cache is empty."""
        self.remove(name)
        self.replicas[name] = replica = Replica(name, rates, self._fleet)
        self._changed(replica)

    def remove(self, name: str) -> None:
        """Send nothing more to a replica: it was lost, or ends."""
        replica = self.replicas.pop(name, None)
        if replica is None:
            return
        self._entries.pop(replica, None)
        for key in replica.cached:
            self._drop_holder(key, replica)

    def route(
        self, chain: PrefixChain, now_s: float, excluded: frozenset[str] = frozenset()
    ) -> Route | None:
        """Choose a replica, and count the request as sent to it; None if there is none left."""
        best_s, forecast_s, cached = math.inf, 0.0, 0
        chosen: Replica | None = None
        for replica, num_cached in self._candidates(chain, excluded):
            first_s = replica.first_token_s(chain.num_tokens - num_cached, now_s)
            if first_s + replica.crowd_s < best_s:
                best_s, forecast_s, cached = first_s + replica.crowd_s, first_s, num_cached
                chosen = replica
        if chosen is None:
            return None
        read_s = chosen.read_s(chain.num_tokens - cached)
        route = Route(chosen, chain.num_tokens, cached, forecast_s, now_s, read_s)
        chosen.free_s = max(chosen.free_s, now_s) + read_s
        chosen.queued_s += read_s
        chosen.num_running += 1
        self._keep(chosen, chain)
        self._changed(chosen)
        return route

    def begin(self, route: Route, now_s: float) -> None:
        """Note that the first token of a request has come: its prompt is read."""
        if not route.has_begun:
            route.replica.learn(route.forecast_s, now_s - route.start_s)
            self._leave_queue(route, now_s)

    def end(self, route: Route, now_s: float) -> None:
        """Note that a request has ended, however it did."""
        route.replica.num_running -= 1
        self._leave_queue(route, now_s)

    def _leave_queue(self, route: Route, now_s: float) -> None:
        replica = route.replica
        if not route.has_begun:
            route.has_begun = True
            replica.queued_s = max(replica.queued_s - route.read_s, 0.0)
            replica.free_s = now_s + replica.queued_s
        if replica.name in self.replicas:
            self._changed(replica)

    def _candidates(
        self, chain: PrefixChain, excluded: frozenset[str]
    ) -> Iterator[tuple[Replica, int]]:
        """Some with the longest prefix of all, and the one that is ready first.

        With the tokens of the prompt that each has.
        """
        holders, num_tokens = self._longest_prefix(chain)
        half = _MOST_HOLDERS // 2
        some = list(itertools.islice(holders, half))
        if len(holders) > half:
            some += itertools.islice(reversed(holders), min(half, len(holders) - half))
        for replica in some:
            if replica.name not in excluded:
                yield replica, num_tokens
        skipped = []
        while self._ready:
            entry = self._ready[0]
            replica = entry[2]
            if self._entries.get(replica) != entry[1]:
                heapq.heappop(self._ready)
                continue
            if replica.name not in excluded:
                yield replica, replica.num_cached(chain)
                break
            skipped.append(heapq.heappop(self._ready))
        for entry in skipped:
            heapq.heappush(self._ready, entry)

    def _longest_prefix(self, chain: PrefixChain) -> tuple[dict[Replica, None], int]:
        """Who has most of a prompt, and how many tokens that is."""
        count = chain.num_links(self._holders.__contains__)
        if not count:
            return {}, 0
        key, num_tokens = chain.links[count - 1]
        return self._holders[key], num_tokens

    def _keep(self, replica: Replica, chain: PrefixChain) -> None:
        """Count all of a prompt as cached; what was used longest ago leaves, ends before heads."""
        cached, tokens_before = replica.cached, 0
        lengths = []
        for key, num_tokens in chain.links:
            lengths.append((key, num_tokens - tokens_before))
            tokens_before = num_tokens
        for key, length in reversed(lengths):
            if key in cached:
                cached.move_to_end(key)
            else:
                cached[key] = length
                replica.num_cached_tokens += length
            holders = self._holders.setdefault(key, {})
            holders.pop(replica, None)
            holders[replica] = None
        while replica.num_cached_tokens > replica.rates.cache_tokens and cached:
            key, length = cached.popitem(last=False)
            replica.num_cached_tokens -= length
            self._drop_holder(key, replica)

    def _drop_holder(self, key: bytes, replica: Replica) -> None:
        holders = self._holders.get(key)
        if holders is not None:
            holders.pop(replica, None)
            if not holders:
                del self._holders[key]

    def _changed(self, replica: Replica) -> None:
        self._entries[replica] = number = next(self._count)
        heapq.heappush(self._ready, (replica.ready_s, number, replica))
        if len(self._ready) > 8 * len(self.replicas) + 64:
            self._ready = [each for each in self._ready if self._entries.get(each[2]) == each[1]]
            heapq.heapify(self._ready)
