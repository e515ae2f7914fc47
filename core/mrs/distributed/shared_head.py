"""The share of the head, which tells the other processes each step before it computes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from mrs.cache.cache_space import CacheBuilder
from mrs.cache.sequence_cache import SequenceCache
from mrs.distributed.further_layers import RemoteRank, int64_bytes, step_of
from mrs.distributed.layer_caches import RemoteBlocks
from mrs.distributed.messages import OpenSpace
from mrs.distributed.rank_group import RankGroup
from mrs.distributed.shared_decoder import SharedDecoder
from mrs.distributed.tensor_shares import RankPlan
from mrs.errors import MrsError
from mrs.kernels.paged import PagedKV
from mrs.model.batch import ForwardBatch
from mrs.model.model_weights import ModelWeights


class SharedRanks:
    """The other processes: their caches follow those of the head, and they get all steps."""

    def __init__(
        self,
        ranks: Sequence[RemoteRank],
        group: RankGroup,
        fail: Callable[[Exception], MrsError],
    ) -> None:
        """`fail` is called with an error of a connection, and returns the reason."""
        self._ranks = ranks
        self.group = group
        self.fail = fail
        self._number = 0

    def add_caches(self, builder: CacheBuilder) -> None:
        for rank in self._ranks:
            rank.log.clear()
            rank.log.append(OpenSpace([_add(builder, rank, n) for n in rank.layers]))

    def start(self, batch: ForwardBatch, caches: Sequence[SequenceCache]) -> None:
        """Send the next step. Raises MrsError."""
        self._number += 1
        tokens = int64_bytes(batch.token_ids)
        for rank in self._ranks:
            rank.link.doing = f"in step {self._number}"
            rows = batch.logits_rows
            rank.link.send(step_of(rank, self._number, batch, caches, rows, tokens))


def _add(builder: CacheBuilder, rank: RemoteRank, layer: int) -> int:
    info = rank.caches[layer]
    blocks: PagedKV = RemoteBlocks(rank.log, layer, info.size_bytes)  # type: ignore[assignment]
    return builder.add_blocks(blocks, info.window)


class SharedHead(SharedDecoder):
    """The share of rank 0."""

    def __init__(
        self, weights: ModelWeights, plans: Sequence[RankPlan], ranks: SharedRanks
    ) -> None:
        super().__init__(weights, plans, 0)
        self._ranks = ranks
        self.join(ranks.group)

    def forward(
        self,
        batch: ForwardBatch,
        caches: Sequence[SequenceCache],
        check: Callable[[], None] = lambda: None,
        observe: Callable[[Tensor], None] | None = None,
    ) -> Tensor:
        """As in `Decoder`; `check` is called before the step alone, which no process can leave."""
        check()
        try:
            self._ranks.start(batch, caches)
            return super().forward(batch, caches, observe=observe)
        except (OSError, EOFError, MrsError) as error:
            raise self._ranks.fail(error) from error
        except BaseException:
            self._ranks.group.close()  # the other processes would wait for this one
            raise

    def _add_caches(self, builder: CacheBuilder) -> None:
        super()._add_caches(builder)
        self._ranks.add_caches(builder)
