"""The speed that a placement is planned to have."""

from __future__ import annotations

from collections.abc import Sequence

from mrs.cpu import torch_units
from mrs.plan.bandwidth import bandwidth_of
from mrs.plan.device import Device
from mrs.plan.placement import Placement
from mrs.plan.speed import DeviceSpeed, Processor, SpeedEstimate
from mrs.plan.terms import ModelSizes
from mrs.plan.work import Work, chosen_share, past_numbers


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
        works[index] += sizes.on(devices[index]).kept.layer_work[layer] + past
    return SpeedEstimate(
        work=tuple(works),
        devices=tuple(DeviceSpeed(_processor(device), bandwidth_of(device)) for device in devices),
        chunk_tokens=sizes.load.chunk_tokens,
        chosen_share=chosen_share(sizes.spec),
    )


def _processor(device: Device) -> Processor:
    if device.torch_device != "cpu":
        return device.kind
    return "cpu with matrix units" if "amx" in torch_units() else "cpu"
