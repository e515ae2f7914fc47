"""A decoder of whose layers several processes have a share each (tensor parallelism).

Every process has the same hidden states, computes its heads and its columns of each MLP, and adds
up the outputs of all. It has some rows of embedding and head: it looks up the tokens of these, and
computes their logits, which rank 0 gets.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from mrs.devices.memory_nodes import memory_nodes, own_processors
from mrs.devices.processor import cpu_threads
from mrs.distributed.tensor_shares import RankPlan
from mrs.load.tensor_reader import TORCH_DTYPES
from mrs.model.decoder import Decoder
from mrs.model.model_weights import ModelWeights


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


class Group(Protocol):
    """The processes that share the layers."""

    def sum(self, part: Tensor) -> Tensor:
        """The sum of the parts of all ranks, in their order."""

    def gather(self, part: Tensor, widths: Sequence[int]) -> Tensor:
        """The parts (N, width) side by side, for rank 0; for other ranks anything."""


class SharedDecoder(Decoder):
    """The share of process `rank` of those with these `plans`."""

    def __init__(self, weights: ModelWeights, plans: Sequence[RankPlan], rank: int) -> None:
        plan, spec = plans[rank].plan, plans[rank].planner.description.spec
        self._own_rows = plans[rank].vocabulary
        self._widths = [len(each.vocabulary) for each in plans]
        self._group: Group | None = None
        super().__init__(
            spec,
            weights,
            [torch.device("cpu")] * len(spec.layers),
            TORCH_DTYPES[plan.dense.name],
            TORCH_DTYPES[plan.cache_format.name],
            sum_of_ranks=self._sum,
        )

    def join(self, group: Group) -> None:
        """Compute with these processes from now on."""
        self._group = group

    def look_up(self, token_ids: Tensor) -> Tensor:
        """The embeddings (N, hidden) of `token_ids` (N), of all ranks."""
        own_ids = token_ids - self._own_rows.start
        is_own = (own_ids >= 0) & (own_ids < len(self._own_rows))
        x = super()._look_up(own_ids.clamp(0, len(self._own_rows) - 1))
        return self._sum(x.masked_fill_(~is_own[:, None], 0.0))

    def finish(self, x: Tensor) -> None:
        """Compute the own part of the logits of x (W, hidden), for rank 0."""
        self._project(self._normed(x))

    def _look_up(self, token_ids: Tensor) -> Tensor:
        return self.look_up(token_ids)

    def _project(self, x: Tensor) -> Tensor:
        assert self._group is not None
        return self._group.gather(super()._project(x), self._widths)

    def _sum(self, part: Tensor) -> Tensor:
        assert self._group is not None
        return self._group.sum(part)
