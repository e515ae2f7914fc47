"""Steps that a sequence has to itself, with nothing between them but the choice of its tokens.

The weights of a step evict the interpreter from the processor's caches: what an engine does around
a step takes a tenth of the step of a small model. A burst does it once for several.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from mrs.engine.choose_tokens import choose_next
from mrs.engine.sampling.sampler import SampledToken
from mrs.engine.scheduler import Scheduler
from mrs.engine.sequence import Sequence
from mrs.model.native_layers import NativeSteps

if TYPE_CHECKING:
    from mrs.engine.cache_manager import CacheManager

#: A burst is expected to end so soon after it began, and readers get its tokens then.
BURST_S = 0.08


class Burst:
    """At most `most_steps` of a token each, in the same block of the cache.

    `steps` compute them. The caller counts the first step, as it does one without a burst.
    """

    def __init__(
        self,
        sequence: Sequence,
        steps: NativeSteps,
        most_steps: int,
        scheduler: Scheduler,
        caches: CacheManager,
    ) -> None:
        self._sequence, self._steps, self._most_steps = sequence, steps, most_steps
        self._scheduler, self._caches = scheduler, caches
        #: The steps after the first one.
        self.num_further = 0

    def tokens(self, may_go_on: Callable[[], bool], latest_s: float) -> Iterator[SampledToken]:
        """Choose a token after the first step, then compute and choose more.

        No step begins after `latest_s`, a time of `time.perf_counter`; nor once the sequence has
        ended or was aborted, others want to start, or the next step may have more tokens than one:
        those of a draft, or that a grammar forces.
        """
        sequence, scheduler, steps = self._sequence, self._scheduler, self._steps
        ids, is_broken = sequence.token_ids, False
        first = len(ids) + 1
        try:
            yield from choose_next(sequence, steps.logits()[0])
            for length in range(first, first + self._most_steps - 1):
                if (
                    sequence.finish_reason is not None
                    or sequence.is_aborted
                    or len(ids) > length
                    or not may_go_on()
                    or scheduler.may_draft(sequence)
                    or time.perf_counter() > latest_s
                ):
                    break
                is_broken = True
                steps.next(ids[-1])
                is_broken = False
                self.num_further += 1
                yield from choose_next(sequence, steps.logits()[0])
        finally:
            self._caches.append(sequence, self.num_further)
            if is_broken:
                self._caches.rollback(sequence)
