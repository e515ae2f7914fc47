"""How fast a placement will be: tokens a second, low and high.

One model for both phases. Decoding reads, for one token, every weight that takes part and the
keys and values so far, each at the bandwidth of its device. A prompt does the same once for a
whole chunk of tokens, and is bound by arithmetic where that takes longer; how many operations a
device does for each byte that it could read meanwhile depends on its kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mrs.plan.fastest import HOP_SECONDS
from mrs.plan.placement import Placement
from mrs.request import PREFILL_CHUNK_TOKENS

#: The part of a plain sequential read's speed that decoding reaches, in public measurements of
#: several engines and in ours: from plain kernels to ones laid out for the memory.
READ_EFFICIENCY = (0.5, 1.0)

#: Operations of a matrix product for each byte of bandwidth, from kernels that decode weights on
#: the fly to the matrix units' rate: consumer and server CPUs, Apple and NVIDIA GPUs.
OPERATIONS_PER_BYTE = {"cpu": (5.0, 80.0), "metal": (15.0, 40.0), "cuda": (40.0, 250.0)}


class Range(NamedTuple):
    low: float
    high: float


@dataclass(frozen=True)
class SpeedEstimate:
    """Tokens a second of one sequence."""

    decode: Range
    prompt: Range


@dataclass(frozen=True)
class Work:
    """What one token costs: one entry a layer, and the non-mapped part's.

    `weight_bytes` are those that a token takes part in (of experts, the chosen ones);
    `kv_bytes` are read at the full planned length; `weights` counts multiplications.
    """

    weight_bytes: Sequence[int]
    kv_bytes: Sequence[int]
    weights: Sequence[int]
    non_mapped_weight_bytes: int
    non_mapped_weights: int


@dataclass(frozen=True)
class DeviceSpeed:
    """What the estimate needs to know of a device; `kind` is that of where its tensors live."""

    kind: str
    bandwidth_bytes_per_s: float


def estimate_speed(
    placement: Placement,
    work: Work,
    devices: Sequence[DeviceSpeed],
    *,
    chunk_tokens: int = PREFILL_CHUNK_TOKENS,
    hop_seconds: float = HOP_SECONDS,
) -> SpeedEstimate:
    """Tokens a second for decoding and for the prompt, one entry of `devices` a device.

    Low: half of the bandwidth and a full cache. High: all of it and an empty cache.
    """
    used = sum(1 for _, count in placement.layers if count)
    hops = used * hop_seconds if used > 1 else 0.0
    decode, prompt = [], []
    for end in (0, 1):
        reads, products = _device_seconds(placement, work, devices, end, chunk_tokens)
        decode.append(1 / (sum(reads) + hops))
        chunk = sum(map(max, zip(reads, products, strict=True)))
        prompt.append(chunk_tokens / (chunk + hops))
    return SpeedEstimate(Range(*decode), Range(*prompt))


def _device_seconds(
    placement: Placement,
    work: Work,
    devices: Sequence[DeviceSpeed],
    end: int,
    chunk_tokens: int,
) -> tuple[list[float], list[float]]:
    """Seconds to read everything once and to multiply one chunk, by device; `end` 0 is low."""
    read_bytes = [0.0] * len(devices)
    operations = [0.0] * len(devices)
    read_bytes[placement.first_device] += work.non_mapped_weight_bytes
    # Logits are computed for the last token of a chunk alone.
    operations[placement.first_device] += 2 * work.non_mapped_weights
    for layer, index in enumerate(placement.layer_devices):
        full_cache = work.kv_bytes[layer] if end == 0 else 0
        read_bytes[index] += work.weight_bytes[layer] + full_cache
        operations[index] += 2 * work.weights[layer] * chunk_tokens
    reads, products = [], []
    for device, size, count in zip(devices, read_bytes, operations, strict=True):
        reads.append(size / (device.bandwidth_bytes_per_s * READ_EFFICIENCY[end]))
        rate = device.bandwidth_bytes_per_s * OPERATIONS_PER_BYTE[device.kind][end]
        products.append(count / rate)
    return reads, products
