"""Enforces the parts of a server's budget that all of its models share."""

from __future__ import annotations

from mrs.media.open_image import DECODED_IMAGES, DECODING_ROOM
from mrs.plan.memory.server_budget import ServerBudget
from mrs.server.http.bodies import Bodies
from mrs.server.replies.response_store import ResponseStore
from mrs.server.replies.unread import UnreadBytes
from mrs.text.backend import ENCODING_ROOM


class ServerMemory:
    """Holds bodies, stored responses and unread replies, each within its part of the budget.

    Images and texts are limited for the whole process.
    """

    def __init__(self) -> None:
        self.bodies = Bodies()
        self.responses = ResponseStore()
        self.unread = UnreadBytes()

    def limit(self, budget: ServerBudget) -> None:
        """Enforce another budget from now on. Any thread may call this."""
        self.bodies.most_bytes = budget.bodies
        self.responses.most_bytes = budget.responses
        self.unread.most_bytes = budget.unread
        ENCODING_ROOM.most_bytes = budget.texts
        if budget.decoding:  # that of a model which sees: others leave its memory to it
            DECODING_ROOM.most_bytes = budget.decoding
            DECODED_IMAGES.max_bytes = budget.decoded
