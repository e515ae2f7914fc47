"""Whose sequences sit out steps, so that no client slows the others down to less than their share."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from mrs.turns import Client


class OwnTime:
    """What clients owe for time of steps that only their own sequences needed.

    A step with replies of several clients takes little longer than one with those of a single
    client, unless one of them has prompts, or grammars and log-probabilities, that take long. Such a
    client sits out until the others have had as much time without it: of two clients, none needs
    more than twice its time alone.
    """

    def __init__(self) -> None:
        self._owed_s: dict[Client, float] = {}

    def resting(self, clients: Collection[Client]) -> set[Client]:
        """Those of the clients with sequences that sit out the next step; never all of them."""
        self._owed_s = {each: self._owed_s[each] for each in clients if each in self._owed_s}
        if len(self._owed_s) == len(clients):
            self._owed_s.clear()
        return set(self._owed_s)

    def settle(self, own_s: Mapping[Client, float], step_s: float) -> None:
        """Note a step of `step_s` and what each client that had a part in it needed alone."""
        paid = {each: owed - step_s for each, owed in self._owed_s.items() if each not in own_s}
        owed = {each: len(own_s) * used_s - step_s for each, used_s in own_s.items()}
        others = owed if len(own_s) > 1 else {}
        self._owed_s = {each: value for each, value in {**paid, **others}.items() if value > 0}
