"""What is known of drafts beyond one reply: how often they are accepted, and how long steps take."""

from __future__ import annotations

from collections import deque
from statistics import median

from mrs.plan.speed.draft_gain import FIRST_CHANCE, DraftCost

#: Steps of a kind whose median is their time: other programs disturb some.
_STEPS = 9
#: With fewer it is not known.
_LEAST_STEPS = 3
#: How much of what was counted before each draft still counts, in a reply and beyond it.
_OWN_MEMORY, _USUAL_MEMORY = 0.9, 0.98


class Acceptance:
    """How often drafted tokens are accepted, from a `chance` that counts as one token."""

    def __init__(self, chance: float = FIRST_CHANCE, memory: float = _OWN_MEMORY) -> None:
        self._tried, self._accepted, self._memory = 1.0, chance, memory

    @property
    def chance(self) -> float:
        return self._accepted / self._tried

    def learn(self, drafted: int, accepted: int) -> None:
        """Count how many tokens of a draft were accepted; those after the first other do not."""
        self._tried = self._memory * self._tried + min(accepted + 1, drafted)
        self._accepted = self._memory * self._accepted + accepted


class DraftPace:
    """Measures steps with drafts and without, by how many sequences they have.

    A plan knows what processors do; what the interpreter takes between their calls is a good part
    of the steps of a small model.
    """

    def __init__(self, cost: DraftCost) -> None:
        """`cost` is the planned one of a single sequence."""
        self._cost = cost
        self._plain_s: dict[int, deque[float]] = {}
        self._factors: dict[int, deque[float]] = {}
        #: How often the tokens of recent replies were accepted: new replies begin with it.
        self.usual = Acceptance(memory=_USUAL_MEMORY)

    def knows(self, sequences: int) -> bool:
        """Whether steps of so many sequences without a draft are measured."""
        return len(self._plain_s.get(sequences, ())) >= _LEAST_STEPS

    def add(self, sequences: int, drafted_tokens: int, seconds: float, steps: int = 1) -> None:
        """Add the time of some steps in which all sequences decode, with drafts of all together."""
        if not drafted_tokens:
            times_s = self._plain_s.setdefault(sequences, deque(maxlen=_STEPS))
            times_s.extend([seconds / steps] * min(steps, _LEAST_STEPS))
        elif self.knows(sequences):
            planned = self._cost.of(sequences)
            plain_steps = 1 + planned.of_token * drafted_tokens / (sequences * steps)
            factor = seconds / steps / (median(self._plain_s[sequences]) * plain_steps)
            self._factors.setdefault(sequences, deque(maxlen=_STEPS)).append(factor)

    def cost(self, sequences: int) -> DraftCost:
        """The cost of a draft of each of so many sequences."""
        planned, factors = self._cost.of(sequences), self._factors.get(sequences)
        return planned._replace(factor=median(factors)) if factors else planned
