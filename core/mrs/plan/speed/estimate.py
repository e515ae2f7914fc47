"""Estimate the speed of a placement."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from mrs.devices.device import Device
from mrs.devices.disk import disk_bandwidth
from mrs.plan.cost import Work, chosen_share
from mrs.plan.memory.kv_bytes import decoded_cache_bytes, state_bytes
from mrs.plan.placement.placement import Placement
from mrs.plan.speed.rates import DISK_ERRORS, device_speed, with_activations
from mrs.plan.speed.roofline import MOST_CACHED_BYTES, SpeedEstimate
from mrs.request import ActivationBits

if TYPE_CHECKING:
    from mrs.plan.memory.device_sizes import ModelSizes

#: Steps that a layer needs to choose experts and to sort tokens by expert.
ROUTING_STEPS = 6
#: Steps of a matrix of an expert on the CPU whose layer is on an accelerator: each expert is called
#: by itself there, in 30 us more than it takes to read it.
GUEST_STEPS = 5


def estimate_speed(
    sizes: ModelSizes,
    placement: Placement,
    devices: Sequence[Device],
    activations: ActivationBits | None = None,
) -> SpeedEstimate:
    """The planned speed of a placement on `devices`, or that with other bits of `activations`."""
    bits = sizes.activations if activations is None else activations
    works = [Work()] * len(devices)
    first = placement.first_device
    works[first] = sizes.on(devices[first]).weights.non_mapped_work
    on = [sizes.on(device).weights.layer_work for device in devices]
    kinds, kind_of = sizes.layer_kinds
    # Layers that are alike are added up at once: large models have few kinds of layers.
    alike: Counter[tuple[int, int, int, Work, Work]] = Counter()
    for layer, index in enumerate(placement.layer_devices):
        guest = placement.experts.get(layer, index)
        alike[index, guest, kind_of[layer], on[index][layer], on[guest][layer]] += 1
    context = sizes.workload.context_tokens
    windows: dict[int, list[Work]] = {}
    for (index, guest, kind, work, guest_work), count in alike.items():
        mixer, states = kinds[kind].mixer, state_bytes([kinds[kind]])
        own = Work(
            state_bytes=2 * states,
            tensors=0 if kinds[kind].feed_forward.routing is None else ROUTING_STEPS,
        )
        past = Work(
            cache_bytes=decoded_cache_bytes(
                [kinds[kind]], sizes.cache, context, image_keys=sizes.image_keys
            )
            - states,
            past_multiplications=mixer.cached_multiplications(context, sizes.image_keys),
        )
        full = min(mixer.cache_shape.window or context, context)
        cached = works
        if full < context:
            cached = windows.setdefault(full, [Work()] * len(devices))
        cached[index] = cached[index].plus(past.times(count))
        works[index] = works[index].plus(work.without_experts.plus(own).times(count))
        experts = guest_work.of_experts
        if guest != index and devices[guest].kind == "cpu":
            experts = experts._replace(expert_tensors=GUEST_STEPS * experts.expert_tensors)
        works[guest] = works[guest].plus(experts.times(count))
    format_name, weights_kind = _weights_kind(sizes, works, devices[first])
    chosen = chosen_share(sizes.spec)
    return SpeedEstimate(
        work=tuple(works),
        devices=tuple(
            device_speed(device, format_name, weights_kind, _bytes_per_weight(work, chosen), bits)
            for device, work in zip(devices, works, strict=True)
        ),
        chunk_tokens=sizes.workload.chunk_tokens,
        context_tokens=context,
        windows={full: tuple(each) for full, each in windows.items()},
        chosen_share=chosen,
        expert_hops=2 * len(placement.experts),
        has_states=state_bytes(sizes.spec.layers) > 0,
        weights_kind=with_activations(weights_kind, bits),
    )


def with_disk(
    speed: SpeedEstimate,
    layer_bytes: int,
    expert_bytes: int,
    row_bytes: int,
    missing_use: float = 1.0,
) -> SpeedEstimate:
    """The speed if each pass reads so many bytes from disk, and those of the chosen experts.

    Experts that are read are chosen `missing_use` times as often as if all were chosen alike. Each
    token reads `row_bytes` besides.
    """
    bytes_per_s, is_measured = disk_bandwidth()
    return replace(
        speed,
        disk_seconds=layer_bytes / bytes_per_s,
        disk_expert_seconds=expert_bytes / bytes_per_s,
        disk_row_seconds=row_bytes / bytes_per_s,
        disk_chosen_share=missing_use * speed.chosen_share,
        disk_error=DISK_ERRORS[is_measured],
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
