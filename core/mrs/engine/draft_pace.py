"""What is known of drafts beyond one reply: how many are accepted, and how long steps take."""

from __future__ import annotations

from collections import deque
from statistics import median

from mrs.plan.speed.draft_gain import FIRST_CHANCE, DraftCost

#: Times of a kind of which the median counts: other programs disturb steps with drafts and without.
#: The fastest of single steps would be compared with means of bursts. With fewer it is not known.
_TIMES, _LEAST_TIMES = 9, 3
#: Steps with drafts of several sequences, after which one has none, to be measured.
_MOST_DRAFTED = 64
#: How much of what was counted before each draft still counts, in a reply and beyond it.
_OWN_MEMORY, _USUAL_MEMORY = 0.9, 0.98
#: Steps without a draft before another one is tried; each failure doubles them. What is lost with
#: one that is tried is at most such a share of them.
_FIRST_PAUSE, _LONGEST_PAUSE, _LOST_SHARE = 16, 1024, 0.01


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


class _Times:
    """Times of steps, or what they are compared with; those of long bursts if there are any."""

    def __init__(self) -> None:
        self._values = deque[float](maxlen=_TIMES)
        self._longest = 1

    def add(self, value: float, steps: int) -> None:
        """Add the mean of so many steps in one burst."""
        if steps > 2 * self._longest:
            self._values.clear()
        self._longest = max(self._longest, steps)
        if 2 * steps >= self._longest:
            self._values.extend([value] * min(steps, _LEAST_TIMES))

    @property
    def usual(self) -> float | None:
        return median(self._values) if len(self._values) >= _LEAST_TIMES else None


class DraftPace:
    """Measures steps with drafts and without, by how many sequences they have.

    A plan knows what processors do; what the interpreter takes between their calls is a good part
    of the steps of a small model.
    """

    def __init__(self, cost: DraftCost) -> None:
        #: The planned cost of a single sequence.
        self.planned = cost
        self._plain: dict[int, _Times] = {}
        #: By how many sequences there are, and by the length of their drafts.
        self._factors: dict[int, dict[int, _Times]] = {}
        #: Those of `cost` by how many sequences there are, until more is measured.
        self._costs: dict[int, DraftCost] = {}
        self._drafted_steps = 0
        #: How often the tokens of recent replies were accepted: new replies begin with it.
        self.usual = Acceptance(memory=_USUAL_MEMORY)
        self._pause = _FIRST_PAUSE
        #: Steps left of the last pause: a new reply is a part of it.
        self.paused_steps = 0

    def may_draft(self, sequences: int) -> bool:
        """Whether so many sequences may have drafts; else the next step is measured without."""
        times = self._plain.get(sequences)
        is_due = sequences > 1 and self._drafted_steps >= _MOST_DRAFTED
        return times is not None and times.usual is not None and not is_due

    @property
    def is_known(self) -> bool:
        """Whether steps of a sequence that is alone are measured."""
        return 1 in self._plain

    @property
    def plain_s(self) -> float | None:
        """What a step without a draft takes, of a sequence alone."""
        times = self._plain.get(1)
        return None if times is None else times.usual

    def add(self, sequences: int, drafted_tokens: int, seconds: float, steps: int = 1) -> None:
        """Add the time of some steps in which all sequences decode, with drafts of all together."""
        if not drafted_tokens:
            self._drafted_steps = 0
            if sequences not in self._plain:
                self._plain[sequences] = _Times()
            self._plain[sequences].add(seconds / steps, steps)
            return
        self._drafted_steps += steps
        plain = self._plain.get(sequences)
        if plain is not None and plain.usual is not None:
            length = max(round(drafted_tokens / (sequences * steps)), 1)
            planned_steps = self.planned.of(sequences).planned_steps(length)
            by_length = self._factors.setdefault(sequences, {})
            times = by_length.setdefault(length, _Times())
            times.add(seconds / steps / (plain.usual * planned_steps), steps)
            self._costs.pop(sequences, None)

    def cost(self, sequences: int) -> DraftCost:
        """The cost of a draft of each of so many sequences."""
        if sequences not in self._costs:  # it is asked for between the steps of a burst
            self._costs[sequences] = self._measured_cost(sequences)
        return self._costs[sequences]

    def _measured_cost(self, sequences: int) -> DraftCost:
        by_length = self._factors.get(sequences, {})
        factors = tuple(
            (length, times.usual) for length, times in by_length.items() if times.usual is not None
        )
        cost = self.planned.of(sequences)
        return cost._replace(factors=factors) if factors else cost

    def begin_pause(self, cost: DraftCost) -> int:
        """After a draft that saved no time, how many steps have none."""
        self.paused_steps = round(min(max(self._pause, cost.trial / _LOST_SHARE), _LONGEST_PAUSE))
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        return self.paused_steps

    def end_pauses(self) -> None:
        """After drafts that save time, a pause is short again."""
        self._pause, self.paused_steps = _FIRST_PAUSE, 0
