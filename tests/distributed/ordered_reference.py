"""One process that adds what all ranks compute, in their order: the exact reference of shares.

Each rank has a thread, of which one runs at a time: until its next sum, after which the thread of
the next rank goes on. So all ranks have computed their parts when the first one goes on again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from operator import add
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from mrs.cache.cache_space import CacheBuilder
from mrs.cache.paged_kv import PagedKVCache
from mrs.cache.sequence_cache import SequenceCache
from mrs.distributed.shard import (
    RankPlan,
    importance_for,
    load_parameters,
    one_device_plan,
    rank_plans,
)
from mrs.distributed.tensor_parallel import ShardedDecoder
from mrs.model.batch import ForwardBatch
from mrs.model.decoder import Decoder
from mrs.model.model_weights import ModelWeights
from mrs.request import RunRequest
from mrs.run.model_loader import ModelLoader

_LIMIT_S = 120.0


def plans_of(request: RunRequest, ranks: int) -> list[RankPlan]:
    planner = ModelLoader(request).planner
    return rank_plans(planner, one_device_plan(planner, request), request, ranks)


def load_share(plan: RankPlan, importance: Mapping[str, Tensor] | None = None) -> ModelWeights:
    """The share of a rank of all layers."""
    parameters = list(plan.planner.description.parameters)
    return load_parameters(plan.planner, plan.plan, parameters, importance or {})


def ordered_reference(request: RunRequest, ranks: int) -> Decoder:
    importance = importance_for(request, ModelLoader(request).planner.description)
    return OrderedReference(plans_of(request, ranks), importance)


class _Turns:
    """Whose turn it is, and the parts of all ranks since that of the first one."""

    def __init__(self, ranks: int) -> None:
        self.parts: list[Any] = [None] * ranks
        self.error: BaseException | None = None
        self._now, self._changed = 0, threading.Condition()

    @contextmanager
    def running(self, rank: int) -> Iterator[None]:
        """The thread of `rank`, from its first turn to the end of its last one."""
        self._await(rank)
        try:
            yield
        except BaseException as error:
            self.error = self.error or error
            raise
        finally:
            self._pass_on()

    def exchange(self, rank: int, part: Tensor) -> list[Tensor]:
        """The parts of all ranks, once each has given its own."""
        self.parts[rank] = part
        self._pass_on()
        self._await(rank)
        if rank == 0:
            self._shared = list(self.parts)
        return self._shared

    def _await(self, rank: int) -> None:
        with self._changed:
            is_there = self._changed.wait_for(lambda: self._now == rank, _LIMIT_S)
        assert is_there, f"rank {rank} waits in vain"
        if self.error is not None:
            raise RuntimeError("another rank has failed") from self.error

    def _pass_on(self) -> None:
        with self._changed:
            self._now = (self._now + 1) % len(self.parts)
            self._changed.notify_all()


class _OrderedGroup:
    """The group of one rank."""

    def __init__(self, turns: _Turns, rank: int) -> None:
        self._turns, self._rank = turns, rank

    def all_reduce(self, part: Tensor) -> Tensor:
        parts = self._turns.exchange(self._rank, part.float())
        return reduce(add, parts)

    def gather(self, part: Tensor, widths: Sequence[int]) -> Tensor:
        return torch.cat(self._turns.exchange(self._rank, part), 1)

    def broadcast(self, x: Tensor) -> Tensor:
        return self._turns.exchange(self._rank, x)[0]


class _FurtherCaches:
    """A `CacheBuilder` for the caches of a rank, which follow those of the ranks before it."""

    def __init__(self, builder: CacheBuilder) -> None:
        self._builder, self._first = builder, builder.count
        self.config, self.add_paged, self.add = builder.config, builder.add_paged, builder.add

    def add_shared(self, layer: int) -> Any:
        return self._builder.add_shared(self._first + layer)


class OrderedReference(ShardedDecoder):
    """The decoder of rank 0, which runs those of all others, too."""

    def __init__(
        self, plans: Sequence[RankPlan], importance: Mapping[str, Tensor] | None = None
    ) -> None:
        layers = len(plans[0].planner.description.spec.layers)
        weights = [load_share(plan, importance) for plan in plans]
        self.weight_bytes = [sum(each.bytes_by_device().values()) for each in weights]
        super().__init__(weights[0], plans, 0, layers)
        self._others = [
            ShardedDecoder(each, plans, rank, layers) for rank, each in enumerate(weights) if rank
        ]

    def _add_caches(self, builder: CacheBuilder) -> None:
        super()._add_caches(builder)
        for each in self._others:
            each._add_caches(_FurtherCaches(builder))  # type: ignore[arg-type]

    def forward(
        self,
        batch: ForwardBatch,
        caches: Sequence[SequenceCache],
        check: Callable[[], None] = lambda: None,
        observe: Callable[[Tensor], None] | None = None,
        score: Callable[[slice, Tensor], None] | None = None,
        keep: Callable[[Tensor], None] | None = None,
    ) -> Tensor:
        turns = _Turns(1 + len(self._others))
        own = self.stack.cache_count

        def views(rank: int) -> list[Any]:
            span = slice(rank * own, (rank + 1) * own)
            return [
                SimpleNamespace(layers=each.layers[span], advance=lambda tokens: None)
                for each in caches
            ]

        @torch.inference_mode()
        def run(rank: int) -> None:
            torch.set_num_threads(1)
            with turns.running(rank):
                self._others[rank - 1].forward(batch, views(rank), score=lambda *_: None)

        threads = [
            threading.Thread(target=run, args=(rank,)) for rank in range(1, len(turns.parts))
        ]
        for rank, each in enumerate([self, *self._others]):
            each.join(_OrderedGroup(turns, rank))
        for thread in threads:
            thread.start()
        try:
            with turns.running(0):
                logits = super().forward(batch, views(0), observe=observe, score=score, keep=keep)
        finally:
            for thread in threads:
                thread.join()
        if turns.error is not None:
            raise turns.error
        for cache, (span, _) in zip(caches, batch.queries, strict=True):
            cache.advance(span.stop - span.start)
        return logits


def require_whole(request: RunRequest, ranks: int, tolerance: float) -> None:
    """Nearly the logits of the whole model, and exactly the planned bytes."""
    from clusters import single_decoder
    from test_exact import logits_of

    plans = plans_of(request, ranks)
    shared = OrderedReference(plans)
    whole = logits_of(single_decoder(request))
    assert (whole - logits_of(shared)).abs().max() < tolerance * whole.abs().max()
    assert shared.weight_bytes == [plan.weight_bytes for plan in plans]
    size = plans[0].plan.workload.cache
    cache = shared.new_cache(size.tokens, size.chunk_tokens)
    sizes = [
        each.kv.nbytes if isinstance(each, PagedKVCache) else each.nbytes for each in cache.layers
    ]
    assert sum(sizes) == sum(plan.kv_bytes for plan in plans)
