"""The fixed pool of KV blocks: whether there is one, and how many blocks it has.

The rules are those of PagedAttention in mistral.rs (version 0.8.1).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from mrs.devices.device import Device, DeviceMemory
from mrs.errors import DoesNotFit
from mrs.plan.largest import largest
from mrs.plan.memory.breakdown import Correction
from mrs.plan.memory.cache_size import blocks_of
from mrs.plan.placement.place import charged_memory, place
from mrs.plan.placement.placement import Placement
from mrs.request import PagedRequest, RunRequest
from mrs.units import MIB

if TYPE_CHECKING:
    from mrs.plan.memory.device_sizes import ModelSizes, Workload
    from mrs.plan.placement.place import DecodeRate

#: Fraction of a GPU's memory for weights, activations and the pool if no size is given.
DEFAULT_FRACTION = 0.9


def place_with_pool(
    request: RunRequest,
    sizes: ModelSizes,
    devices: Sequence[Device],
    corrections: Mapping[str, Correction],
    decode_rate: DecodeRate,
    placement: Placement | None = None,
) -> tuple[ModelSizes, Placement]:
    """The sizes, with a pool if there is one, and the placement.

    If layers are split between an accelerator and the CPU, there is no pool: the layers are placed
    again with a cache that grows as needed. A given `placement` does not change.
    """
    blocks = None
    if _may_have_pool(request, devices[0].kind):
        first = charged_memory(sizes, devices, corrections)
        blocks = pool_blocks(request, sizes, devices[0], first)
    if blocks is not None:
        pooled = sizes.with_pool(blocks)
        placed = placement or place(request, pooled, devices, corrections, decode_rate)
        if not _is_split_with_cpu(placed, devices):
            return pooled, placed
    return sizes, placement or place(request, sizes, devices, corrections, decode_rate)


def _is_split_with_cpu(placement: Placement, devices: Sequence[Device]) -> bool:
    """Whether the CPU stores layers although there is an accelerator."""
    used = (devices[index].kind for index, count in placement.layers if count)
    return devices[0].kind != "cpu" and "cpu" in used


def _may_have_pool(request: RunRequest, kind: str) -> bool:
    """Whether a pool is made if it fits.

    By default only on CUDA, and not with a manual layer map: its layers may be on another device
    than the one whose memory gives the size of the pool.
    """
    paged = request.paged
    if paged.pool is not None:
        return paged.pool
    return bool(paged.sizes) or (kind == "cuda" and request.layer_map is None)


def pool_blocks(
    request: RunRequest, sizes: ModelSizes, device: Device, first: DeviceMemory
) -> int | None:
    """Blocks of the pool, from the memory `first` of the first device.

        given              blocks
        a length           for that many tokens
        only an amount     that fit in it and in the free memory; DoesNotFit if not even one
        else, on CUDA      that fit next to the weights in a fraction of the memory (by default
                           DEFAULT_FRACTION), but at least what the planned sequences need, so that
                           a model larger than one device works
        else, not on CUDA  what the planned sequences need, because others use this memory too

    Memory gives no more blocks than running and cached sequences could use. None if the
    pool would limit sequences to the planned length although no flag asked for a pool.
    """
    paged, workload, on_device = request.paged, sizes.workload, sizes.on(device)
    needed = workload.batch * blocks_of(workload.context_tokens, workload.block_tokens)
    if paged.context_tokens is not None:
        return blocks_of(paged.context_tokens, workload.block_tokens)
    free_bytes = first.usable_bytes - max(
        on_device.mapped_act_bytes, on_device.non_mapped_act_bytes
    )
    if paged.memory_fraction is None and paged.memory_mib is not None:
        return _blocks_of_amount(request, sizes, paged.memory_mib, free_bytes)
    if first.kind != "cuda":
        return needed if paged.pool else None
    fraction = paged.memory_fraction or DEFAULT_FRACTION
    reserved_bytes = int(first.usable_bytes * (1 - fraction))
    weights = sum(on_device.layer_bytes) + on_device.non_mapped_bytes
    fitting = _largest_pool(request, sizes, free_bytes - reserved_bytes - weights) or 0
    if fitting < needed and not (paged.pool or paged.sizes):
        return None
    return max(needed, fitting)


def _blocks_of_amount(
    request: RunRequest, sizes: ModelSizes, memory_mib: int, free_bytes: int
) -> int:
    """Blocks in the requested amount or in the free memory, whichever is less.

    DoesNotFit if the requested amount is less than one block.
    """
    wanted_bytes, block_bytes = memory_mib * MIB, sizes.pool_bytes(1)
    if block_bytes > wanted_bytes:
        raise DoesNotFit(
            f"{memory_mib} MiB are less than one block of {sizes.workload.block_tokens} tokens",
            missing_bytes=block_bytes - wanted_bytes,
            where="--pa-gpu-mem",
            hint="give more, or use --no-paged-attn",
        )
    return _largest_pool(request, sizes, min(wanted_bytes, free_bytes)) or 1


def _largest_pool(request: RunRequest, sizes: ModelSizes, free_bytes: int) -> int | None:
    """Most blocks in `free_bytes` that running and cached sequences could fill."""
    sequences = request.max_seqs + request.prefix_cache_n
    most = sequences * blocks_of(sizes.spec.context_tokens, sizes.workload.block_tokens)
    return largest(lambda blocks: sizes.pool_bytes(blocks) <= free_bytes, 1, most)


def pool_warnings(paged: PagedRequest, workload: Workload, kind: str) -> Iterator[str]:
    """Warnings about the flags of the pool; `kind` is that of the first device."""
    given = paged.sizes
    if paged.pool is False:
        if given:
            yield f"{', '.join(given)} has no effect with --no-paged-attn"
        return
    for flag in given[1:]:
        yield f"{flag} has no effect: {given[0]} takes precedence"
    if given[:1] == ["--pa-gpu-mem-usage"] and kind != "cuda":
        yield "--pa-gpu-mem-usage has no effect: it is for CUDA GPUs"
    elif workload.pool_blocks is None and (paged.pool or given):
        yield "the KV cache has no fixed pool, because some layers are on the CPU"
    pool_tokens = workload.cache.total_tokens
    if workload.pool_blocks is not None and pool_tokens < workload.context_tokens:
        yield (
            f"the KV cache has {pool_tokens} tokens, so no sequence can have the "
            f"{workload.context_tokens} planned ones"
        )
