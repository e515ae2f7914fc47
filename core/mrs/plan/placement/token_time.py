"""The time of one decoded token under a placement, from what it reads on each device.

Decoding is bound by memory traffic: a token reads every weight and the KV once, each from the
device that holds it, and the hidden state hops between devices. So the time of a placement is

    sum over devices (bytes read there / bandwidth there) + hops * hop_seconds

and with `m > 1` devices there are `m` hops: `m - 1` on the way and one back to the head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mrs.plan.placement.placement import Placement

#: One hidden state through pinned memory: a copy is a few kilobytes, so latency is all.
HOP_SECONDS = 20e-6


@dataclass(frozen=True)
class TokenReads:
    """Bytes that one decoded token reads: one entry a layer (weights and KV), and the rest."""

    layer_bytes: Sequence[int]
    non_mapped_bytes: int


def token_seconds(
    placement: Placement,
    reads: TokenReads,
    bandwidth_bytes_per_s: Sequence[float],
    hop_seconds: float = HOP_SECONDS,
) -> float:
    """Predicted seconds for one decoded token; one bandwidth for each device."""
    used = [(device, count) for device, count in placement.layers if count]
    seconds = reads.non_mapped_bytes / bandwidth_bytes_per_s[placement.first_device]
    for device, layer_bytes in zip(placement.layer_devices, reads.layer_bytes, strict=True):
        seconds += layer_bytes / bandwidth_bytes_per_s[device]
    return seconds + (len(used) * hop_seconds if len(used) > 1 else 0.0)
