"""The share of the head, which tells the other processes each step before it computes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor

from mrs.cache.cache_space import CacheBuilder
from mrs.cache.sequence_cache import SequenceCache
from mrs.distributed.further_layers import (
    Connections,
    RemoteLayers,
    add_share,
    step_of,
)
from mrs.distributed.head_decoder import Renewing
from mrs.distributed.shared_decoder import SharedDecoder
from mrs.distributed.tensor_shares import RankPlan
from mrs.errors import MrsError
from mrs.model.batch import ForwardBatch
from mrs.model.caches_lost import CachesLost
from mrs.model.model_weights import ModelWeights


class SharedRanks:
    """The other processes: their caches follow those of the head, and they get all steps."""

    def __init__(self, connected: Connections) -> None:
        assert connected.group is not None
        self._ranks, self.group = connected.shares, connected.group
        self._number = 0

    def take_over(self, fresh: Connections) -> None:
        """Go on with other processes, which have the shares of those before and empty caches."""
        for rank, new in zip(self._ranks, fresh.shares, strict=True):
            rank.take_over(new.link)
        assert fresh.group is not None
        self.group = fresh.group

    def add_caches(self, builder: CacheBuilder) -> None:
        for rank in self._ranks:
            rank.open(0, partial(add_share, builder, rank))

    def start(self, batch: ForwardBatch, caches: Sequence[SequenceCache]) -> None:
        """Send the next step. Raises MrsError."""
        self._number += 1
        for rank in self._ranks:
            rank.link.doing = f"in step {self._number}"
            rows = [*batch.scored_rows, *batch.logits_rows]
            rank.link.send(step_of(rank, self._number, batch, caches, rows, is_first=True))
        for image in batch.images:
            self.group.spread(image.features)


class SharedHead(SharedDecoder):
    """The share of rank 0."""

    def __init__(
        self,
        weights: ModelWeights,
        plans: Sequence[RankPlan],
        connected: Connections,
        gathering: Renewing,
        layers: int,
    ) -> None:
        """The head has a share of the first `layers` layers."""
        stages = connected.stages
        self._stages = None if stages is None else RemoteLayers(stages)
        super().__init__(weights, plans, 0, layers, self._stages)
        self._ranks = SharedRanks(connected)
        self._gathering = gathering
        self.join(self._ranks.group)

    def forward(
        self,
        batch: ForwardBatch,
        caches: Sequence[SequenceCache],
        check: Callable[[], None] = lambda: None,
        observe: Callable[[Tensor], None] | None = None,
        score: Callable[[slice, Tensor], None] | None = None,
    ) -> Tensor:
        """As in `Decoder`; `check` is called before the step alone, which no process can leave.

        Raises CachesLost.
        """
        fresh = self._gathering.renewed()
        if fresh is not None:
            self._ranks.take_over(fresh)
            if self._stages is not None and fresh.stages is not None:
                self._stages.take_over(fresh.stages)
            self.join(self._ranks.group)
            raise CachesLost
        check()
        try:
            self._ranks.start(batch, caches)
            return super().forward(batch, caches, observe=observe, score=score)
        except (OSError, EOFError, MrsError) as error:
            raise self._gathering.reason(error) from error
        except BaseException:
            self._ranks.group.close()  # the other processes would wait for this one
            raise

    def _project(self, x: Tensor) -> Tensor:
        """The other processes of the group do not have what the last stage has computed."""
        return super()._project(x if self._stages is None else self._ranks.group.spread(x))

    def _add_caches(self, builder: CacheBuilder) -> None:
        super()._add_caches(builder)
        self._ranks.add_caches(builder)
