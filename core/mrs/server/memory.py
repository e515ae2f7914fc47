"""Enforces the parts of a server's budget that all of its models share."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from mrs.plan.memory.server_budget import ServerBudget
from mrs.run.request_memory import RequestMemory
from mrs.server.http.bodies import Bodies
from mrs.server.replies.response_store import ResponseStore
from mrs.server.replies.unread import UnreadBytes


class ServerMemory:
    """Holds bodies, stored responses and unread replies, each within its part of the budget.

    `requests` is that of texts and images, for all models of the server.
    """

    def __init__(self) -> None:
        #: Of the models that are loaded.
        self._budgets = WeakKeyDictionary[object, ServerBudget]()
        self.bodies = Bodies()
        self.responses = ResponseStore()
        self.unread = UnreadBytes()
        self.requests = RequestMemory()

    def limit(self, model: object, budget: ServerBudget) -> None:
        """Enforce the budget of a model too, as long as it is loaded. Any thread may call this.

        Of each part the models share the largest, as their plans count it.
        """
        self._budgets[model] = budget
        budgets = list(self._budgets.values())
        self.bodies.most_bytes = max(each.bodies for each in budgets)
        self.responses.most_bytes = max(each.responses for each in budgets)
        self.unread.most_bytes = max(each.unread for each in budgets)
        self.requests.texts.most_bytes = max(each.texts for each in budgets)
        self.requests.media.room.most_bytes = max(each.decoding for each in budgets)
        self.requests.media.decoded.max_bytes = max(each.decoded for each in budgets)
