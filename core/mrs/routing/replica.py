"""What a router knows of one replica: its speed, what its prefix cache has, and its work."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from mrs.routing.prefix_chain import PrefixChain

#: How much longer a reply takes if all slots are used than alone, as a share of `reply_s`.
_CROWDING = 0.3


@dataclass(frozen=True)
class Rates:
    """How fast a replica is, as planned or measured; its cache keeps `cache_tokens` of prefixes."""

    prompt_tokens_per_s: float
    reply_s: float
    slots: int
    cache_tokens: int


class Pace:
    """How many times longer than by its rates a replica reads prompts, or all of them do."""

    #: How much the last prompt counts; the first ones count more.
    _LEARNING = 0.1
    _LEAST, _MOST = 1 / 64, 64.0

    def __init__(self) -> None:
        self.value, self.num_learnt = 1.0, 0

    def learn(self, pace: float) -> None:
        self.num_learnt += 1
        share = max(self._LEARNING, 1 / (1 + self.num_learnt))
        value = self.value * (pace / self.value) ** share
        self.value = min(max(value, self._LEAST), self._MOST)


@dataclass(eq=False)
class Replica:
    """A replica, by name; times are those of one clock of the caller."""

    name: str
    rates: Rates
    #: That of all replicas, until its own is known.
    fleet: Pace
    #: When all prompts that were sent to it are expected to be read.
    free_s: float = 0.0
    #: How long those take of which no first token has come.
    queued_s: float = 0.0
    #: Requests that were sent to it and have not ended.
    num_running: int = 0
    pace: Pace = field(default_factory=Pace)
    #: Keys of links, the least recently used first, and how many tokens of prompts they have.
    cached: OrderedDict[bytes, int] = field(default_factory=OrderedDict)
    num_cached_tokens: int = 0

    def num_cached(self, chain: PrefixChain) -> int:
        """The tokens of a prompt that its cache has, by what was sent to it."""
        count = chain.num_links(self.cached.__contains__)
        return chain.links[count - 1].num_tokens if count else 0

    @property
    def ready_s(self) -> float:
        """When it could begin with another prompt."""
        rates = self.rates
        excess = max(self.num_running + 1 - rates.slots, 0)
        return self.free_s + excess * rates.reply_s / rates.slots

    def first_token_s(self, num_unread: int, now_s: float) -> float:
        """How long the first token of a reply is expected to take, if so many are to be read."""
        return max(self.ready_s - now_s, 0.0) + self.read_s(num_unread)

    @property
    def crowd_s(self) -> float:
        """How much longer a reply takes here because of those that run already."""
        return _CROWDING * self.rates.reply_s * self.num_running / self.rates.slots

    def read_s(self, num_tokens: int) -> float:
        """How long it takes to read so many tokens of a prompt."""
        pace = self.pace if self.pace.num_learnt else self.fleet
        return pace.value * num_tokens / self.rates.prompt_tokens_per_s

    def learn(self, forecast_s: float, seconds: float) -> None:
        """Note how long a first token took for which so much was forecast."""
        if forecast_s > 0 and seconds > 0:
            pace = self.pace if self.pace.num_learnt else self.fleet
            found = pace.value * seconds / forecast_s
            self.fleet.learn(found)
            self.pace.learn(found)
