"""The speed that a placement is planned to have."""

from __future__ import annotations

from collections.abc import Sequence

from mrs.families.spec import Moe
from mrs.plan.device import Device
from mrs.plan.placement import Placement
from mrs.plan.rates import device_speed
from mrs.plan.speed import MOST_CACHED_BYTES, SpeedEstimate
from mrs.plan.terms import ModelSizes
from mrs.plan.work import Work, chosen_share, past_numbers

#: What choosing experts and sorting tokens by them costs a layer.
ROUTING_STEPS = 6


def estimate_speed(
    sizes: ModelSizes, placement: Placement, devices: Sequence[Device]
) -> SpeedEstimate:
    """Tokens a second of a placement on `devices`."""
    works = [Work()] * len(devices)
    works[placement.first_device] = sizes.on(devices[placement.first_device]).kept.non_mapped_work
    for layer, index in enumerate(placement.layer_devices):
        mixer = sizes.spec.layers[layer].mixer
        past = Work(
            cache_bytes=sizes.kv_bytes[layer] // sizes.load.batch,
            past_numbers=past_numbers(mixer, sizes.load.context_tokens, sizes.image_keys),
        )
        if isinstance(sizes.spec.layers[layer].feed_forward, Moe):
            past += Work(tensors=ROUTING_STEPS)
        works[index] += sizes.on(devices[index]).kept.layer_work[layer] + past
    format_name, kind = _weights_kind(sizes, works, devices[placement.first_device])
    return SpeedEstimate(
        work=tuple(works),
        devices=tuple(device_speed(device, format_name, kind) for device in devices),
        chunk_tokens=sizes.load.chunk_tokens,
        context_tokens=sizes.load.context_tokens,
        chosen_share=chosen_share(sizes.spec),
        weights_kind=kind,
    )


def _weights_kind(sizes: ModelSizes, works: Sequence[Work], device: Device) -> tuple[str, str]:
    """The format of most weights, and what their rates are learnt as: apart for what caches hold,
    for mixtures, and for what is multiplied without the native kernels."""
    kept = sizes.on(device).kept
    format_name = kept.weights_format.split(" ")[0]
    words = [format_name]
    if sum(work.weight_bytes + work.expert_bytes for work in works) < MOST_CACHED_BYTES:
        words.append("cached")
    if any(isinstance(layer.feed_forward, Moe) for layer in sizes.spec.layers):
        words.append("mixture")
    if not kept.is_packed:
        words.append("without native kernels")
    return format_name, " ".join(words)
