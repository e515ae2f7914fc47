"""How many blocks a paged KV cache gets, and `fill` with a paged cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mrs.devices.device import DeviceMemory
from mrs.errors import DoesNotFit
from mrs.plan.placement.fill import auto_map
from mrs.plan.placement.placement import Demand, Placement

BLOCK_TOKENS = (8, 16, 32)


@dataclass(frozen=True)
class PagedBudget:
    """How much KV a paged cache may hold: exactly one of three forms.

    `amount_bytes`: at most these bytes in all layers together. `utilization`: this fraction of
    the first device's usable memory, less weights and activations. `context_tokens`: room for
    these tokens. ValueError for another number of forms or an unknown block size.
    """

    amount_bytes: int | None = None
    utilization: float | None = None
    context_tokens: int | None = None
    block_tokens: int = 32

    def __post_init__(self) -> None:
        forms = (self.amount_bytes, self.utilization, self.context_tokens)
        if sum(form is not None for form in forms) != 1:
            raise ValueError("a paged budget has one of amount, utilization and context")
        if self.block_tokens not in BLOCK_TOKENS:
            raise ValueError(f"{self.block_tokens} is not a block size: 8, 16 or 32")


@dataclass(frozen=True)
class PagedPlacement:
    """A placement and the blocks of each layer's cache; `blocks` is None when not paged."""

    placement: Placement
    blocks: int | None


def paged_blocks(
    budget: PagedBudget,
    *,
    demand: Demand,
    block_bytes: int,
    planned_tokens: int,
    first: DeviceMemory,
) -> int:
    """Blocks of the cache; `block_bytes` are those of one block in all layers together.

    A utilization leaves the cache what the weights leave of the first device, and never less
    than `planned_tokens` need: a model that is larger than one device still gets its length. On
    unified memory more than `planned_tokens` are never taken, because the rest of the machine
    uses that memory too. DoesNotFit when not one block is left.
    """
    needed = -(-planned_tokens // budget.block_tokens)
    activations = demand.activation_bytes(first=True)
    if budget.context_tokens is not None:
        return -(-budget.context_tokens // budget.block_tokens)
    if budget.amount_bytes is not None:
        room = min(budget.amount_bytes, first.usable_bytes - activations)
        blocks = max(0, room) // block_bytes
    else:
        room = int(first.usable_bytes * (budget.utilization or 0.0))
        blocks = max(needed, (room - demand.weight_bytes - activations) // block_bytes)
    if first.kind == "metal":
        blocks = min(blocks, needed)
    if not blocks:
        raise DoesNotFit(
            "the paged KV budget holds not one block",
            missing_bytes=block_bytes - max(0, room),
            hint="raise --pa-gpu-mem or --pa-gpu-mem-usage, or use --no-paged-attn",
        )
    return blocks


def auto_map_paged(
    *,
    layer_bytes: Sequence[int],
    non_mapped_bytes: int,
    kv_bytes_per_layer: int | Sequence[int],
    kv_block_bytes_per_layer: Sequence[int],
    mapped_act_bytes: int,
    non_mapped_act_bytes: int,
    planned_tokens: int,
    budget: PagedBudget,
    devices: Sequence[DeviceMemory],
) -> PagedPlacement:
    """`auto_map` with a paged cache; without one (`kv_bytes_per_layer`) if the CPU gets layers.

    `kv_block_bytes_per_layer` are the bytes of one block in each layer, `planned_tokens` the
    longest length times the batch.
    """

    def placed(kv_bytes: int | Sequence[int]) -> Placement:
        return auto_map(
            layer_bytes=layer_bytes,
            non_mapped_bytes=non_mapped_bytes,
            kv_bytes_per_layer=kv_bytes,
            mapped_act_bytes=mapped_act_bytes,
            non_mapped_act_bytes=non_mapped_act_bytes,
            devices=devices,
        )

    blocks = paged_blocks(
        budget,
        demand=Demand.of(layer_bytes, non_mapped_bytes, 0, mapped_act_bytes, non_mapped_act_bytes),
        block_bytes=sum(kv_block_bytes_per_layer),
        planned_tokens=planned_tokens,
        first=devices[0],
    )
    paged = placed([blocks * block for block in kv_block_bytes_per_layer])
    if any(devices[index].kind == "cpu" for index, _ in paged.layers):
        return PagedPlacement(placed(kv_bytes_per_layer), None)
    return PagedPlacement(paged, blocks)
