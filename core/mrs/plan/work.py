"""What forward passes of a placed model ask of each device, for the estimate of its speed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import prod

from mrs.families.spec import Attention, CrossAttention, LatentAttention, Mixer, Parameter
from mrs.plan.bandwidth import bandwidth_of
from mrs.plan.device import Device
from mrs.plan.placement import Placement
from mrs.plan.processor import bf16_units
from mrs.plan.reads import decoded_share
from mrs.plan.speed import DeviceSpeed, Processor, SpeedEstimate, Work
from mrs.plan.terms import ModelSizes


def estimate_speed(
    sizes: ModelSizes, placement: Placement, devices: Sequence[Device]
) -> SpeedEstimate:
    """Tokens a second of a placement on `devices`."""
    totals = [Counter[str]() for _ in devices]
    shares = {1.0}
    layer_devices = placement.layer_devices
    for parameter in sizes.parameters:
        share = decoded_share(parameter, sizes.spec)
        if not share:
            continue
        layer = parameter.layer
        index = placement.first_device if layer is None else layer_devices[layer]
        size_bytes = sizes.on(devices[index]).storage[parameter.name].size_bytes
        totals[index].update(_parameter_work(parameter, size_bytes, share))
        shares.add(share)
    for layer, index in enumerate(layer_devices):
        totals[index]["cache_bytes"] += sizes.kv_bytes[layer] // sizes.load.batch
        mixer = sizes.spec.layers[layer].mixer
        totals[index]["past_numbers"] += _past_numbers(
            mixer, sizes.load.context_tokens, sizes.image_keys
        )
    return SpeedEstimate(
        work=tuple(Work(**total) for total in totals),
        devices=tuple(DeviceSpeed(_processor(device), bandwidth_of(device)) for device in devices),
        chunk_tokens=sizes.load.chunk_tokens,
        chosen_share=min(shares),
    )


def _parameter_work(parameter: Parameter, size_bytes: int, share: float) -> dict[str, int]:
    """The fields of `Work` that a parameter adds to; `share` of it takes part in a token."""
    numbers = prod(parameter.shape) if len(parameter.shape) > 1 else 0
    if parameter.layer is None:
        return {"weight_bytes": size_bytes, "tensors": 1, "head_weights": numbers}
    weights = round(share * numbers)
    if share < 1:
        return {"expert_bytes": size_bytes, "expert_tensors": 1, "weights": weights}
    return {"weight_bytes": size_bytes, "tensors": 1, "weights": weights}


def _past_numbers(mixer: Mixer, context_tokens: int, image_keys: int) -> int:
    """Numbers of a full cache that one token is multiplied with; a state is small beside weights."""
    if isinstance(mixer, Attention):
        seen = min(context_tokens, mixer.window or context_tokens)
        return 2 * mixer.heads * mixer.head_dim * seen
    if isinstance(mixer, LatentAttention):
        return mixer.heads * (2 * mixer.latent_dim + mixer.rope.dim) * context_tokens
    if isinstance(mixer, CrossAttention):
        return 2 * mixer.heads * mixer.head_dim * image_keys
    return 0


def _processor(device: Device) -> Processor:
    if device.torch_device != "cpu":
        return device.kind
    return "cpu with matrix units" if bf16_units() == "matrix" else "cpu"
