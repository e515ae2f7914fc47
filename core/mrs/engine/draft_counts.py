"""Counts of drafted tokens, by their position in the draft."""

from __future__ import annotations

from dataclasses import dataclass, field

from mrs.graph.step_rows import MAX_DRAFT_ROWS


def _none() -> list[int]:
    return [0] * (MAX_DRAFT_ROWS - 1)


@dataclass
class DraftCounts:
    """How many tokens were drafted as the first, second and so on of a draft, and accepted there.

    `plain_s` is what a step without a draft takes, if it was measured.
    """

    drafted: list[int] = field(default_factory=_none)
    accepted: list[int] = field(default_factory=_none)
    plain_s: float | None = None

    def add(self, drafted: int, accepted: int) -> None:
        """Count a draft of so many tokens."""
        for position in range(drafted):
            self.drafted[position] += 1
            self.accepted[position] += position < accepted

    @property
    def drafts(self) -> int:
        return self.drafted[0]

    @property
    def drafted_tokens(self) -> int:
        return sum(self.drafted)

    @property
    def accepted_tokens(self) -> int:
        return sum(self.accepted)
