"""A decoder of whose layers several processes have a share each (tensor parallelism).

Every process has the same hidden states, computes its heads and its columns of each MLP, and adds
up the outputs of all. It has some rows of embedding and head: it looks up the tokens of these, and
computes their logits, which rank 0 gets. Features of images come from rank 0. If these processes
are the first stage of a pipeline, the decoder has the first layers only, and rank 0 gets the hidden
states after the last one.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch
from torch import Tensor

from mrs.devices.memory_nodes import memory_nodes, own_processors
from mrs.devices.processor import cpu_threads
from mrs.distributed.rank_group import Group
from mrs.distributed.tensor_shares import RankPlan
from mrs.load.tensor_reader import TORCH_DTYPES
from mrs.model.decoder import Decoder, FurtherLayers
from mrs.model.model_weights import ModelWeights, SumOfRanks
from mrs.quantization.gguf.unquantized import DTYPES
from mrs.quantization.matrix import Matrix
from mrs.sizes.draft_rows import scored_pieces


def use_own_threads(rank: int, ranks: int) -> None:
    """Leave the processor's other threads to the other processes.

    With several memory nodes, threads that start from now on stay on that of the rank, so that they
    compute with weights that they themselves have written to its memory.
    """
    own = own_processors(rank, ranks, memory_nodes())
    if own is not None:
        os.sched_setaffinity(0, own[0])
    threads = cpu_threads() // (ranks if own is None else own[1])
    torch.set_num_threads(min(torch.get_num_threads(), max(1, threads)))


class JoinedGroup:
    """The group of now: layers exist before it, and longer if it gathers again."""

    def __init__(self) -> None:
        self.now: Group | None = None

    def sum(self, part: Tensor) -> Tensor:
        assert self.now is not None
        return self.now.sum(part)


class SharedTable:
    """A table of tokens of which each process has some rows; a `Matrix`."""

    def __init__(self, matrix: Matrix, rows: range, sum_of_ranks: SumOfRanks) -> None:
        self._matrix, self._own, self._sum_of_ranks = matrix, rows, sum_of_ranks
        self.device, self.shape = matrix.device, matrix.shape

    @property
    def nbytes(self) -> int:
        return self._matrix.nbytes

    def matmul(self, x: Tensor) -> Tensor:
        """The products with the own rows."""
        return self._matrix.matmul(x)

    def rows(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        """The rows `ids` (N,), of all processes, as (N, columns)."""
        own_ids = ids - self._own.start
        is_own = (own_ids >= 0) & (own_ids < len(self._own))
        found = self._matrix.rows(own_ids.clamp(0, len(self._own) - 1), dtype)
        return self._sum_of_ranks(found.masked_fill_(~is_own[:, None], 0.0)).to(dtype)


class SharedDecoder(Decoder):
    """The share of process `rank` of those with these `plans`, of the first `layers` layers."""

    def __init__(
        self,
        weights: ModelWeights,
        plans: Sequence[RankPlan],
        rank: int,
        layers: int,
        further: FurtherLayers | None = None,
    ) -> None:
        plan, spec = plans[rank].plan, plans[rank].planner.description.spec
        self._widths = [len(each.vocabulary) for each in plans]
        self.group = JoinedGroup()
        tables = {
            name: SharedTable(weights.matrix(name.removesuffix(".weight")), rows, self.group.sum)
            for name, rows in plans[rank].rows.items()
            if not name.startswith("head.")
        }
        super().__init__(
            spec,
            weights.with_matrices(tables).shared_by(self.group.sum),
            [torch.device(plan.devices[0].torch_device)] * layers,
            TORCH_DTYPES[plan.dense.name],
            DTYPES[plan.cache_format.name],
            further,
        )

    @property
    def is_on_one_device(self) -> bool:
        """Other processes have parts of each layer: no step can be captured."""
        return False

    def join(self, group: Group) -> None:
        """Compute with these processes from now on."""
        self.group.now = group

    def finish(self, x: Tensor, num_scored: int) -> None:
        """Compute the own part of the logits of x (W, hidden), for rank 0.

        Those of the first `num_scored` rows are computed in pieces, as rank 0 does.
        """
        for piece in [*scored_pieces(num_scored), slice(num_scored, len(x))]:
            self._project(self._normed(x[piece]))

    def finish_spread(self, rows: int, num_scored: int) -> None:
        """The same of so many rows that rank 0 has, after the final norm."""
        assert self.group.now is not None
        size, device = self.spec.hidden_size, self.primary_device
        for piece in [*scored_pieces(num_scored), slice(num_scored, rows)]:
            x = torch.empty(piece.stop - piece.start, size, device=device)
            self._project(self.group.now.spread(x))

    def _project(self, x: Tensor) -> Tensor:
        assert self.group.now is not None
        return self.group.now.gather(super()._project(x), self._widths)
