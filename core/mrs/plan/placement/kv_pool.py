"""The pool of KV blocks that a run is limited to: whether there is one, and how many it has.

The rules are those of PagedAttention in mistral.rs (version 0.8.1).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from mrs.devices.device import Device, DeviceMemory
from mrs.errors import DoesNotFit
from mrs.plan.largest import largest
from mrs.plan.memory.breakdown import Correction
from mrs.plan.memory.device_sizes import ModelSizes, Workload
from mrs.plan.placement.place import charged_memory, place
from mrs.plan.placement.placement import Placement
from mrs.request import PagedRequest, RunRequest
from mrs.sizes.blocks import blocks_of
from mrs.units import MIB

#: The part of a GPU's memory for weights, activations and the pool, where no size is given.
DEFAULT_FRACTION = 0.9


def place_with_pool(
    request: RunRequest,
    sizes: ModelSizes,
    devices: Sequence[Device],
    corrections: Mapping[str, Correction],
    placement: Placement | None = None,
) -> tuple[ModelSizes, Placement]:
    """The sizes with the pool that the run will have, if any, and the placement.

    There is no pool where the CPU has layers and is not the only device: layers are then placed
    again with a cache that grows as needed. A `placement` that is given is kept.
    """
    blocks = None
    if _may_have_pool(request, devices[0].kind):
        first = charged_memory(sizes, devices, corrections)
        blocks = pool_blocks(request, sizes, devices[0], first)
    if blocks is not None:
        pooled = sizes.with_pool(blocks)
        found = placement or place(request, pooled, devices, corrections)
        if not _is_split_with_cpu(found, devices):
            return pooled, found
    return sizes, placement or place(request, sizes, devices, corrections)


def _is_split_with_cpu(placement: Placement, devices: Sequence[Device]) -> bool:
    """Whether the CPU has layers although there is an accelerator."""
    used = (devices[index].kind for index, count in placement.layers if count)
    return devices[0].kind != "cpu" and "cpu" in used


def _may_have_pool(request: RunRequest, kind: str) -> bool:
    """Whether there is one if there is room for it; layers that are placed by hand need not be
    on the device that it is sized by.
    """
    paged = request.paged
    if paged.pool is not None:
        return paged.pool
    return bool(paged.sizes) or (kind == "cuda" and request.layer_map is None)


def pool_blocks(
    request: RunRequest, sizes: ModelSizes, device: Device, first: DeviceMemory
) -> int | None:
    """Blocks of the pool, by the first device of a run, of which `first` is available.

    A fraction leaves the pool what the weights leave of that part of the memory, and never less
    than the planned sequences need: a model that is larger than one device still gets its
    length. Of memory that the rest of the machine uses, too, it takes no more than that. Neither
    a fraction nor an amount makes more blocks than the run could ever use. DoesNotFit if an
    amount is less than one block.

    None where the planned length would become the limit of a sequence, and nobody asked for that.
    """
    paged, load, held = request.paged, sizes.load, sizes.on(device)
    needed = load.batch * blocks_of(load.context_tokens, load.block_tokens)
    if paged.context_tokens is not None:
        return blocks_of(paged.context_tokens, load.block_tokens)
    free_bytes = first.usable_bytes - max(held.mapped_act_bytes, held.non_mapped_act_bytes)
    if paged.memory_fraction is None and paged.memory_mib is not None:
        return _blocks_of_amount(request, sizes, paged.memory_mib, free_bytes)
    if first.kind != "cuda":
        return needed if paged.pool else None
    fraction = paged.memory_fraction or DEFAULT_FRACTION
    left_out = int(first.usable_bytes * (1 - fraction))
    weights = sum(held.layer_bytes) + held.non_mapped_bytes
    left = _largest_pool(request, sizes, free_bytes - left_out - weights) or 0
    if left < needed and not (paged.pool or paged.sizes):
        return None
    return max(needed, left)


def _blocks_of_amount(
    request: RunRequest, sizes: ModelSizes, memory_mib: int, free_bytes: int
) -> int:
    """As many as are asked for, or as are there. DoesNotFit for less than one."""
    asked_bytes, block_bytes = memory_mib * MIB, sizes.pool_bytes(1)
    if block_bytes > asked_bytes:
        raise DoesNotFit(
            f"{memory_mib} MiB hold not one block of {sizes.load.block_tokens} tokens",
            missing_bytes=block_bytes - asked_bytes,
            where="--pa-gpu-mem",
            hint="give more, or use --no-paged-attn",
        )
    return _largest_pool(request, sizes, min(asked_bytes, free_bytes)) or 1


def _largest_pool(request: RunRequest, sizes: ModelSizes, room_bytes: int) -> int | None:
    """The most blocks in so many bytes that running and past sequences could fill."""
    sequences = request.max_seqs + request.prefix_cache_n
    most = sequences * blocks_of(sizes.spec.context_tokens, sizes.load.block_tokens)
    return largest(lambda blocks: sizes.pool_bytes(blocks) <= room_bytes, 1, most)


def pool_remarks(paged: PagedRequest, load: Workload, kind: str) -> Iterator[str]:
    """What a person should know who asked for a pool; `kind` is that of the first device."""
    given = paged.sizes
    if paged.pool is False:
        if given:
            yield f"{', '.join(given)} changes nothing with --no-paged-attn"
        return
    for flag in given[1:]:
        yield f"{flag} changes nothing: {given[0]} goes before it"
    if given[:1] == ["--pa-gpu-mem-usage"] and kind != "cuda":
        yield "--pa-gpu-mem-usage changes nothing: it is for CUDA GPUs"
    elif load.pool_blocks is None and (paged.pool or given):
        yield "the KV cache has no fixed pool, because some layers are on the CPU"
    pool_tokens = load.cache.total_tokens
    if load.pool_blocks is not None and pool_tokens < load.context_tokens:
        yield (
            f"the KV cache holds {pool_tokens} tokens, so no sequence can have the "
            f"{load.context_tokens} that are planned for"
        )
