"""What is known of a request when it ends, for the log and the metrics."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from mrs.events import ReplyUsage

#: The status, as nginx has it, of a request whose client left.
CLIENT_GONE = 499


@dataclass
class ReplyRecord:
    """A finished reply: its usage, why it ended, and how long it waited for its first step."""

    usage: ReplyUsage
    reason: str
    queue_s: float


@dataclass
class RequestRecord:
    """A request from its head on, with the status of its response."""

    id: str
    method: str
    path: str
    model: str = ""
    status: int = CLIENT_GONE
    replies: list[ReplyRecord] = field(default_factory=list)
    start_s: float = field(default_factory=time.perf_counter)
    end_s: float = 0.0

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s

    @property
    def prompt_tokens(self) -> int:
        return sum(each.usage.prompt_tokens for each in self.replies)

    @property
    def cached_tokens(self) -> int:
        return sum(each.usage.cached_tokens for each in self.replies)

    @property
    def completion_tokens(self) -> int:
        return sum(each.usage.completion_tokens for each in self.replies)

    @property
    def first_token_s(self) -> float:
        """The time to the first token of the first reply that had one."""
        return min((each.usage.prompt_s for each in self.replies), default=0.0)

    @property
    def tokens_per_s(self) -> float:
        """Tokens of all replies after their first ones, for each second."""
        seconds = max((each.usage.completion_s for each in self.replies), default=0.0)
        later = self.completion_tokens - len(self.replies)
        return later / seconds if seconds > 0 else 0.0
