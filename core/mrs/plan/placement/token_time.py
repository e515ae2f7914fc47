"""The time of one decoded token under a placement, from the bytes that it reads.

Decoding is limited by memory bandwidth: a token reads every weight and the KV cache once, each on
its own device, and the hidden state is copied between devices (a hop). The time is

    sum over devices (bytes read there / bandwidth there) + hops * hop_seconds

with `m` hops for `m > 1` devices: `m - 1` between them and one back to the head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mrs.plan.placement.placement import Placement

#: One copy of a hidden state through pinned memory; a few kilobytes, so only latency counts.
HOP_SECONDS = 20e-6


@dataclass(frozen=True)
class TokenReads:
    """Bytes that one decoded token reads: weights and KV cache of each layer, and the rest."""

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
