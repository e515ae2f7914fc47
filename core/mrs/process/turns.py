"""Who is next: clients that share something have it in turns, and none fills its queue alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from typing import Protocol, TypeVar

#: Who asks, from the outside in: (API key, address, connection). Those of a queue are as long.
Client = tuple[Hashable, ...]


class Waiter(Protocol):
    """What waits for a turn."""

    @property
    def client(self) -> Client: ...


Waiting = TypeVar("Waiting", bound=Waiter)
#: A client may have at most this multiple of what is free.
_SHARE = 3


class Turns:
    """The order in which clients that wait are served.

    The next key is the one whose last turn is longest ago, of that key it is the address, and so
    on. One that has just come is before the one that has just had its turn, and after all that have
    waited longer: turns cannot be saved up.
    """

    def __init__(self) -> None:
        self._count = 0
        #: When each of those that wait had its last turn, by beginnings of clients.
        self._last: dict[Client, float] = {}

    def in_order(self, waiting: Iterable[Waiting]) -> list[Waiting]:
        """All that wait, the next one first; those of one client as they are given."""
        groups: dict[Client, list[Waiting]] = {}
        for each in waiting:
            groups.setdefault(each.client, []).append(each)
        known = {level for client in groups for level in _levels(client)}
        self._last = {each: self._last.get(each, self._count - 0.5) for each in known}
        order = sorted(groups, key=lambda client: [self._last[each] for each in _levels(client)])
        return [each for client in order for each in groups[client]]

    def take(self, client: Client) -> None:
        """Note that a client has its turn."""
        self._count += 1
        self._last.update(dict.fromkeys(_levels(client), self._count))


def crowding(waiting: Iterable[Waiting], client: Client, added: int = 1) -> Waiting | None:
    """The one that leaves a full queue for others: the last of whoever has most in it.

    None if `client`, with those that are `added`, had most.
    """
    inside, is_found = list(waiting), False
    for length in range(1, len(client) + 1):
        counts = Counter(each.client[:length] for each in inside)
        chosen = client[:length]
        fullest = max(reversed(counts), key=counts.__getitem__, default=chosen)
        if is_found or counts[fullest] > counts[chosen] + added:
            chosen, is_found = fullest, True
        inside = [each for each in inside if each.client[:length] == chosen]
    return inside[-1] if is_found else None


class Shares:
    """What clients have of something that all share, so that each leaves some to others.

    A client has at most three times what is free afterwards. So one alone gets three quarters, and
    however many take all that they can, one more finds some.
    """

    def __init__(self) -> None:
        self._taken = Counter[Client]()

    @property
    def total(self) -> int:
        """What all have together."""
        return self._taken.total()

    def of(self, client: Client) -> int:
        return self._taken[client]

    def add(self, client: Client, amount: int) -> None:
        """Note that a client has `amount` more, or less if that is negative."""
        self._taken[client] += amount
        if not self._taken[client]:
            del self._taken[client]

    def have_room(self, client: Client, most: int, more: int) -> bool:
        """Whether `client` may have `more`, if there is `most` for all."""
        return self._taken[client] + more <= _SHARE * (most - self.total - more)


def _levels(client: Client) -> Iterator[Client]:
    return (client[:length] for length in range(1, len(client) + 1))
