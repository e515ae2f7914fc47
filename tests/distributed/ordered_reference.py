"""One process that adds what all ranks compute, in their order: the exact reference of shares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import add
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from mrs.distributed.model_part import one_device_plan
from mrs.distributed.shared_decoder import SharedDecoder
from mrs.distributed.tensor_shares import RankPlan, load_share, rank_plans
from mrs.model.decoder import Decoder
from mrs.model.decoder_layer import DecoderLayer
from mrs.model_loader import ModelLoader
from mrs.request import RunRequest


def plans_of(request: RunRequest, ranks: int) -> list[RankPlan]:
    planner = ModelLoader(request).planner
    return rank_plans(planner, one_device_plan(planner, request), request, ranks)


def ordered_reference(request: RunRequest, ranks: int) -> Decoder:
    return OrderedReference(plans_of(request, ranks))


class _Alone:
    """A group that leaves the part of its only rank as it is."""

    def sum(self, part: Tensor) -> Tensor:
        return part

    def gather(self, part: Tensor, widths: Sequence[int]) -> Tensor:
        return part


class OrderedReference(SharedDecoder):
    """The decoder of rank 0 whose modules add up those of all ranks."""

    def __init__(self, plans: Sequence[RankPlan]) -> None:
        super().__init__(load_share(plans[0]), plans, 0)
        others = [
            SharedDecoder(load_share(plan), plans, rank) for rank, plan in enumerate(plans) if rank
        ]
        self._all: list[SharedDecoder] = [self, *others]
        for each in self._all:
            each.join(_Alone())
        for index, layer in enumerate(self.stack.layers):
            assert isinstance(layer, DecoderLayer)
            layers: list[Any] = [each.stack.layers[index] for each in self._all]
            layer.mixer = _SumOfMixers([each.mixer for each in layers])
            layer._feed_forward = _sum_of([each._feed_forward for each in layers])

    def look_up(self, token_ids: Tensor) -> Tensor:
        return reduce(add, [SharedDecoder.look_up(each, token_ids) for each in self._all])

    def _project(self, x: Tensor) -> Tensor:
        return torch.cat([Decoder._project(each, x) for each in self._all], 1)


def _sum_of(modules: Sequence[Any]) -> Callable[[Tensor], Tensor]:
    return lambda x: reduce(add, [module(x) for module in modules])


class _SumOfMixers:
    """Each mixer has keys and values of its own, in blocks of the same numbers."""

    def __init__(self, mixers: Sequence[Any]) -> None:
        self._mixers = mixers
        self._kvs: list[Any] = []

    def add_cache(self, builder: Any, device: torch.device) -> None:
        self._mixers[0].add_cache(builder, device)
        self._kvs.clear()

        def add_paged(kv: Any, window: int | None = None) -> int:
            self._kvs.append(kv)
            return int(builder.add_blocks(kv, window))

        for mixer in self._mixers[1:]:
            mixer.add_cache(SimpleNamespace(config=builder.config, add_paged=add_paged), device)

    def __call__(self, x: Tensor, batch: Any, cache: Sequence[Any]) -> Tensor:
        caches = [cache]
        caches += [[SimpleNamespace(kv=kv, group=cache[0].group)] for kv in self._kvs]
        pairs = zip(self._mixers, caches, strict=True)
        return reduce(add, [mixer(x, batch, own) for mixer, own in pairs])
