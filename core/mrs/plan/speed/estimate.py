"""Estimate the speed of a placement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mrs.devices.device import Device
from mrs.plan.cost import Work, chosen_share
from mrs.plan.placement.placement import Placement
from mrs.plan.speed.rates import device_speed
from mrs.plan.speed.roofline import MOST_CACHED_BYTES, SpeedEstimate

if TYPE_CHECKING:
    from mrs.plan.memory.device_sizes import ModelSizes

#: Steps that a layer needs to choose experts and to sort tokens by expert.
ROUTING_STEPS = 6


def estimate_speed(
    sizes: ModelSizes, placement: Placement, devices: Sequence[Device]
) -> SpeedEstimate:
    """The planned speed of a placement on `devices`."""
    works = [Work()] * len(devices)
    first = placement.first_device
    works[first] = sizes.on(devices[first]).weights.non_mapped_work
    for layer, index in enumerate(placement.layer_devices):
        mixer = sizes.spec.layers[layer].mixer
        past = Work(
            cache_bytes=sizes.sequence_kv_bytes[layer],
            past_multiplications=mixer.cached_multiplications(
                sizes.workload.context_tokens, sizes.image_keys
            ),
        )
        if sizes.spec.layers[layer].feed_forward.routing is not None:
            past += Work(tensors=ROUTING_STEPS)
        experts = placement.experts.get(layer, index)
        works[index] += sizes.on(devices[index]).weights.layer_work[layer].without_experts + past
        works[experts] += sizes.on(devices[experts]).weights.layer_work[layer].of_experts
    format_name, kind = _weights_kind(sizes, works, devices[first])
    chosen = chosen_share(sizes.spec)
    return SpeedEstimate(
        work=tuple(works),
        devices=tuple(
            device_speed(device, format_name, kind, _bytes_per_weight(work, chosen))
            for device, work in zip(devices, works, strict=True)
        ),
        chunk_tokens=sizes.workload.chunk_tokens,
        context_tokens=sizes.workload.context_tokens,
        chosen_share=chosen,
        expert_hops=2 * len(placement.experts),
        weights_kind=kind,
    )


def _bytes_per_weight(work: Work, chosen: float) -> float:
    """The mean of the weights that a token is multiplied with, of experts a share of `chosen`."""
    weights = work.weights + work.head_weights + work.expert_weights
    read_bytes = work.weight_bytes + chosen * work.expert_bytes
    return read_bytes / weights if weights else 0.0


def _weights_kind(sizes: ModelSizes, works: Sequence[Work], device: Device) -> tuple[str, str]:
    """The format of most weights, and the key under which their measured rates are stored.

    Rates differ, so keys differ, for weights that fit in the processor's caches, for mixtures of
    experts, and for weights without native kernels.
    """
    weights = sizes.on(device).weights
    words = [weights.main_format]
    if sum(work.weight_bytes + work.expert_bytes for work in works) < MOST_CACHED_BYTES:
        words.append("cached")
    if any(layer.feed_forward.routing is not None for layer in sizes.spec.layers):
        words.append("mixture")
    if not weights.is_packed:
        words.append("without native kernels")
    return weights.main_format, " ".join(words)
