"""A chat under construction: its exchanges, and the facts that later questions refer to."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random


@dataclass(frozen=True)
class Exchange:
    """A question with its answer.

    `about` names the topic of a question for "what was my first question about?", and is empty
    for small talk. `kind` and `subject` say which follow-up questions make sense next.
    """

    question: str
    answer: str
    about: str = ""
    kind: str = ""
    subject: object = None


@dataclass
class Chat:
    """The exchanges so far, and the facts that the user mentioned."""

    rng: Random
    system: str = ""
    exchanges: list[Exchange] = field(default_factory=list)
    told: dict[str, str] = field(default_factory=dict)

    @property
    def topics(self) -> list[str]:
        """What the questions so far were about."""
        return [exchange.about for exchange in self.exchanges if exchange.about]

    def messages(self) -> list[dict[str, str]]:
        """The chat as role and content, as chat templates take it."""
        start = [{"role": "system", "content": self.system}] if self.system else []
        roles = (("user", "question"), ("assistant", "answer"))
        return start + [
            {"role": role, "content": getattr(exchange, part)}
            for exchange in self.exchanges
            for role, part in roles
        ]
