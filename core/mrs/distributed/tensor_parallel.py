"""A decoder of whose layers several processes have a share each (tensor parallelism).

Every process has the same hidden states, computes its heads and its columns of each MLP, and adds
up the outputs of all. It has some rows of embedding and head: it looks up the tokens of these, and
computes their logits, which rank 0 gets. Features of images come from rank 0. If these processes
are the first stage of a pipeline, the decoder has the first layers only, and rank 0 gets the hidden
states after the last one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from mrs.cache.cache_space import CacheBuilder
from mrs.cache.sequence_cache import SequenceCache
from mrs.devices.memory_nodes import memory_nodes, own_processors
from mrs.devices.processor import cpu_threads
from mrs.distributed.pipeline import Connections, RemoteLayers, add_shard, step_of
from mrs.distributed.process_group import ProcessGroup
from mrs.distributed.rendezvous import Rendezvous
from mrs.distributed.shard import RankPlan
from mrs.errors import MrsError
from mrs.graph.step_rows import scored_pieces
from mrs.load.tensor_reader import TORCH_DTYPES
from mrs.model.batch import ForwardBatch
from mrs.model.caches_lost import CachesLost
from mrs.model.decoder import Decoder, RemainingLayers
from mrs.model.model_weights import ModelWeights, SumOfRanks
from mrs.quantization.kv_type import kv_type
from mrs.quantization.matrix import Matrix


def use_own_threads(rank: int, ranks: int) -> None:
    """Leave the processor's other threads to the other processes.

    With several memory nodes, threads that start from now on stay on that of the rank, so that they
    compute with weights that they themselves have written to its memory.
    """
    node = own_processors(rank, ranks, memory_nodes())
    if node is not None:
        os.sched_setaffinity(0, node[0])
    threads = cpu_threads() // (ranks if node is None else node[1])
    torch.set_num_threads(min(torch.get_num_threads(), max(1, threads)))


class CurrentGroup:
    """The group of now: layers exist before it, and longer if it gathers again."""

    def __init__(self) -> None:
        self.current: ProcessGroup | None = None

    def all_reduce(self, part: Tensor) -> Tensor:
        assert self.current is not None
        return self.current.all_reduce(part)


class ShardedTable:
    """A `Matrix` of a table of tokens whose rows are spread over the processes."""

    def __init__(self, matrix: Matrix, rows: range, sum_of_ranks: SumOfRanks) -> None:
        self._matrix, self._rows, self._sum_of_ranks = matrix, rows, sum_of_ranks
        self.device, self.shape = matrix.device, matrix.shape

    @property
    def nbytes(self) -> int:
        return self._matrix.nbytes

    def matmul(self, x: Tensor) -> Tensor:
        """The products with the rows of this process."""
        return self._matrix.matmul(x)

    def rows(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        """The rows `ids` (N,), of all processes, as (N, columns)."""
        indices = ids - self._rows.start
        is_here = (indices >= 0) & (indices < len(self._rows))
        rows = self._matrix.rows(indices.clamp(0, len(self._rows) - 1), dtype)
        return self._sum_of_ranks(rows.masked_fill_(~is_here[:, None], 0.0)).to(dtype)


class ShardedDecoder(Decoder):
    """The shard of process `rank` of those with these `plans`, of the first `layers` layers."""

    def __init__(
        self,
        weights: ModelWeights,
        plans: Sequence[RankPlan],
        rank: int,
        layers: int,
        remaining_layers: RemainingLayers | None = None,
    ) -> None:
        plan, spec = plans[rank].plan, plans[rank].planner.description.spec
        self._widths = [len(plan.vocabulary) for plan in plans]
        self.group = CurrentGroup()
        tables = {
            name: ShardedTable(
                weights.matrix(name.removesuffix(".weight")), rows, self.group.all_reduce
            )
            for name, rows in plans[rank].rows.items()
            if not name.startswith("head.")
        }
        super().__init__(
            spec,
            weights.with_matrices(tables).shared_by(self.group.all_reduce),
            [torch.device(plan.devices[0].torch_device)] * layers,
            TORCH_DTYPES[plan.dense.name],
            kv_type(plan.cache_format.name),
            remaining_layers,
        )

    @property
    def is_on_one_device(self) -> bool:
        """Other processes have parts of each layer: no step can be captured."""
        return False

    def join(self, group: ProcessGroup) -> None:
        """Compute with these processes from now on."""
        self.group.current = group

    def finish(self, x: Tensor, num_scored: int) -> None:
        """Compute this rank's part of the logits of x (W, hidden), for rank 0.

        Those of the first `num_scored` rows are computed in pieces, as rank 0 does.
        """
        for piece in [*scored_pieces(num_scored), slice(num_scored, len(x))]:
            self._project(self._normed(x[piece]))

    def finish_broadcast(self, rows: int, num_scored: int) -> None:
        """The same for `rows` rows that rank 0 has, after the final norm."""
        assert self.group.current is not None
        size, device = self.spec.hidden_size, self.primary_device
        for piece in [*scored_pieces(num_scored), slice(num_scored, rows)]:
            x = torch.empty(piece.stop - piece.start, size, device=device)
            self._project(self.group.current.broadcast(x))

    def _project(self, x: Tensor) -> Tensor:
        assert self.group.current is not None
        return self.group.current.gather(super()._project(x), self._widths)


class GroupRanks:
    """The other ranks of the group: their caches follow those of rank 0, and they get all steps."""

    def __init__(self, connections: Connections) -> None:
        assert connections.group is not None
        self._ranks, self.group = connections.shards, connections.group
        self._number = 0

    def take_over(self, fresh: Connections) -> None:
        """Go on with other processes, which have the shards of those before and empty caches."""
        for rank, successor in zip(self._ranks, fresh.shards, strict=True):
            rank.take_over(successor.link)
        assert fresh.group is not None
        self.group = fresh.group

    def add_caches(self, builder: CacheBuilder) -> None:
        for rank in self._ranks:
            rank.open(0, partial(add_shard, builder, rank))

    def start(self, batch: ForwardBatch, caches: Sequence[SequenceCache]) -> None:
        """Send the next step. Raises MrsError."""
        self._number += 1
        for rank in self._ranks:
            rank.link.doing = f"in step {self._number}"
            rows = [*batch.scored_rows, *batch.logits_rows]
            rank.link.send(step_of(rank, self._number, batch, caches, rows, is_first=True))
        for image in batch.images:
            self.group.broadcast(image.features)


class LeadingShardedDecoder(ShardedDecoder):
    """The shard of rank 0, which tells the other ranks each step before it computes it."""

    def __init__(
        self,
        weights: ModelWeights,
        plans: Sequence[RankPlan],
        connections: Connections,
        rendezvous: Rendezvous[Connections],
        layers: int,
    ) -> None:
        stages = connections.stages
        self._stages = None if stages is None else RemoteLayers(stages)
        super().__init__(weights, plans, 0, layers, self._stages)
        self._ranks = GroupRanks(connections)
        self._rendezvous = rendezvous
        self.join(self._ranks.group)

    def forward(
        self,
        batch: ForwardBatch,
        caches: Sequence[SequenceCache],
        check: Callable[[], None] = lambda: None,
        observe: Callable[[Tensor], None] | None = None,
        score: Callable[[slice, Tensor], None] | None = None,
        keep: Callable[[Tensor], None] | None = None,
    ) -> Tensor:
        """As in `Decoder`; `check` is called before the step alone, which no process can leave.

        Raises CachesLost.
        """
        fresh = self._rendezvous.renewed()
        if fresh is not None:
            self._ranks.take_over(fresh)
            if self._stages is not None and fresh.stages is not None:
                self._stages.take_over(fresh.stages)
            self.join(self._ranks.group)
            raise CachesLost
        check()
        try:
            self._ranks.start(batch, caches)
            return super().forward(batch, caches, observe=observe, score=score, keep=keep)
        except (OSError, EOFError, MrsError) as error:
            raise self._rendezvous.reason(error) from error
        except BaseException:
            self._ranks.group.close()  # the other processes would wait for this one
            raise

    def _project(self, x: Tensor) -> Tensor:
        """The other processes of the group do not have what the last stage has computed."""
        return super()._project(x if self._stages is None else self._ranks.group.broadcast(x))

    def _add_caches(self, builder: CacheBuilder) -> None:
        super()._add_caches(builder)
        self._ranks.add_caches(builder)
