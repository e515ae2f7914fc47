"""Whose sequences sit out steps, so that each client has its share of the engine."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from mrs.process.turns import Client


class OwnTime:
    """What clients owe for time of steps that only their own sequences needed.

    A step with replies of several clients takes little longer than one with those of a single
    client, unless one of them has prompts, or grammars and log-probabilities, that take long. Such
    a client sits out until that is no more than its share: of two clients, none needs more than
    twice its time alone.
    """

    def __init__(self) -> None:
        self._owed_s: dict[Client, float] = {}
        self._num_clients = 0

    def resting(self, clients: Collection[Client]) -> set[Client]:
        """Those of the clients with sequences that sit out the next step; never all of them."""
        self._num_clients = len(clients)
        self._owed_s = {each: self._owed_s[each] for each in clients if each in self._owed_s}
        if len(self._owed_s) == len(clients):
            self._owed_s.clear()
        return set(self._owed_s)

    def shortest_rest_s(self) -> float:
        """How long all of them that sit out go on doing so: what the first of them still owes."""
        return min(self._owed_s.values(), default=0.0)

    def settle(self, own_s: Mapping[Client, float], step_s: float) -> None:
        """Note a step of `step_s` and what each client that had a part in it needed alone.

        The sequences of some of them may have started with the step.
        """
        paid = {each: owed - step_s for each, owed in self._owed_s.items() if each not in own_s}
        num_clients = max(self._num_clients, len(own_s.keys() | paid.keys()))
        owed = {each: num_clients * used_s - step_s for each, used_s in own_s.items()}
        self._owed_s = {each: left_s for each, left_s in {**paid, **owed}.items() if left_s > 0}
