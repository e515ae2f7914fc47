"""Bytes that forward passes read, and multiplications that they do, in each layer."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from functools import cache, reduce
from math import prod
from operator import add
from typing import NamedTuple

from mrs.architecture.model_spec import ModelSpec
from mrs.layers.joined_input.spec import JoinedInput
from mrs.quantization.storage import Storage
from mrs.topology import is_expert
from mrs.weights.binding import Parameter

#: What belongs to the step of another tensor.
PARTS_OF_STEPS = (".bias", ".sinks")


class Work(NamedTuple):
    """The work of a forward pass on a device, or in one of its layers.

    read per pass              weight_bytes in `tensors` tensors, and the chosen experts of
                               expert_bytes in `expert_tensors` tensors, which `expert_products`
                               calls multiply where those of all experts are one
    read per sequence          cache_bytes, for a full cache
    read and written for each  state_bytes, both together
    multiplied per token       weights, expert_weights of its experts, past_multiplications with a
                               full cache
    multiplied per last token  head_weights
    """

    weight_bytes: int = 0
    expert_bytes: int = 0
    cache_bytes: int = 0
    tensors: int = 0
    expert_tensors: int = 0
    expert_products: int = 0
    weights: int = 0
    expert_weights: int = 0
    past_multiplications: int = 0
    head_weights: int = 0
    state_bytes: int = 0

    @property
    def of_experts(self) -> Work:
        """The part of the weights' work that its experts do."""
        return Work(
            expert_bytes=self.expert_bytes,
            expert_tensors=self.expert_tensors,
            expert_products=self.expert_products,
            expert_weights=self.expert_weights,
        )

    @property
    def without_experts(self) -> Work:
        return self._replace(expert_bytes=0, expert_tensors=0, expert_products=0, expert_weights=0)

    def times(self, count: int) -> Work:
        """The work of so many layers like this one."""
        return Work(*(count * each for each in self))

    def plus(self, other: Work) -> Work:
        return Work(*map(add, self, other))


def weights_work(
    parameters: Sequence[Parameter], spec: ModelSpec, storage: Mapping[str, Storage]
) -> tuple[list[Work], Work]:
    """The work of each layer's weights, and of the non-mapped weights."""
    kinds_of: dict[int | None, Counter[_Kind]] = defaultdict(Counter)
    for parameter in parameters:
        if share := decoded_share(parameter, spec):
            is_step = not parameter.name.endswith(PARTS_OF_STEPS)
            kind = _Kind(parameter.shape, storage[parameter.name].size_bytes, share, is_step)
            kinds_of[parameter.layer][kind] += 1

    @cache
    def of_kinds(experts: int | None, kinds: frozenset[tuple[_Kind, int]]) -> Work:
        return reduce(Work.plus, (_work(experts, kind, count) for kind, count in kinds), Work())

    works = {
        layer: of_kinds(_experts(spec, layer), frozenset(kinds.items()))
        for layer, kinds in kinds_of.items()
    }
    return [works.get(layer, Work()) for layer in range(len(spec.layers))], works.get(None, Work())


class _Kind(NamedTuple):
    """What the work of a parameter depends on; a token uses a `share` of it."""

    shape: tuple[int, ...]
    size_bytes: int
    share: float
    is_step: bool


def _work(experts: int | None, kind: _Kind, count: int) -> Work:
    """The work of `count` parameters of a kind.

    `experts` are those of their layer, None for parameters of no layer.
    """
    shape, size_bytes, share = kind.shape, kind.size_bytes, kind.share
    steps = count if kind.is_step else 0
    weights = count * prod(shape) if len(shape) > 1 else 0
    if experts is None:
        return Work(weight_bytes=count * size_bytes, tensors=steps, head_weights=weights)
    if share < 1:
        return Work(
            expert_bytes=count * size_bytes,
            expert_tensors=steps,
            expert_products=steps // experts,
            expert_weights=round(share * weights),
        )
    return Work(weight_bytes=count * size_bytes, tensors=steps, weights=weights)


def _experts(spec: ModelSpec, layer: int | None) -> int | None:
    """The routed experts of a layer, 1 if it has none; None for no layer."""
    if layer is None:
        return None
    routing = spec.layers[layer].feed_forward.routing
    return routing.experts if routing else 1


def chosen_share(spec: ModelSpec) -> float:
    """The fraction of all experts that one token uses; the least of all layers."""
    routings = [layer.feed_forward.routing for layer in spec.layers]
    return min((each.top_k / each.experts for each in routings if each), default=1.0)


def decoded_share(parameter: Parameter, spec: ModelSpec) -> float:
    """The fraction of a parameter that one decoded token uses, on average.

    0 for an embedding, which is only looked up, unless it is also the head. 0 for the vision tower,
    which runs before decoding. Each token of a draft is of one of several heads, which are alike:
    the first is counted, and 0 for the others.
    """
    if parameter.name.startswith(("vision.", "heads.")):
        return 0.0
    if parameter.layer and isinstance(spec.input, JoinedInput):
        return 0.0
    if parameter.layer is None:
        is_head = parameter.name == spec.head_weight and spec.pooler is None
        return 0.0 if parameter.role == "embedding" and not is_head else 1.0
    routing = spec.layers[parameter.layer].feed_forward.routing
    if routing is not None and is_expert(parameter.name):
        return routing.top_k / routing.experts
    return 1.0


def decoded_layer_bytes(
    parameters: Sequence[Parameter],
    spec: ModelSpec,
    storage: Mapping[str, Storage],
    without_experts: Collection[int] = (),
) -> list[int]:
    """Bytes of weights that one decoded token reads in each layer, in some without experts."""
    totals = [0.0] * len(spec.layers)
    for parameter in parameters:
        is_elsewhere = parameter.layer in without_experts and is_expert(parameter.name)
        if parameter.layer is not None and not is_elsewhere:
            share = decoded_share(parameter, spec)
            totals[parameter.layer] += share * storage[parameter.name].size_bytes
    return [round(total) for total in totals]


def decoded_weight_bytes(
    parameters: Sequence[Parameter], spec: ModelSpec, storage: Mapping[str, Storage]
) -> int:
    """Bytes of weights that one decoded token reads in all."""
    sizes = (decoded_share(p, spec) * storage[p.name].size_bytes for p in parameters)
    return round(sum(sizes))
