"""The sizing of a paged KV cache, each form from a computation by hand."""

from __future__ import annotations

import pytest

from mrs.devices.device import DeviceMemory
from mrs.errors import DoesNotFit
from mrs.plan.placement.paged import PagedBudget, auto_map_paged

MIB = 1024**2
GIB = 1024**3
# 32 layers of 8 KV heads x 128, keys and values, 2 bytes: 4096 bytes a token, 128 KiB a block.
BLOCK = 32 * 8 * 128 * 2 * 2
MODEL = {
    "layer_bytes": [200 * MIB] * 32,
    "non_mapped_bytes": 500 * MIB,
    "kv_bytes_per_layer": 4096 * 4096,
    "kv_block_bytes_per_layer": [BLOCK] * 32,
    "mapped_act_bytes": 100 * MIB,
    "non_mapped_act_bytes": 300 * MIB,
    "planned_tokens": 4096,
}
CPU = DeviceMemory("cpu", 0, 64 * GIB)


def cuda(size_gib: int, ordinal: int = 0) -> DeviceMemory:
    return DeviceMemory("cuda", ordinal, size_gib * GIB)


def test_context_form_rounds_up_to_whole_blocks():
    found = auto_map_paged(**MODEL, budget=PagedBudget(context_tokens=8193), devices=[cuda(24)])
    assert found.blocks == 257
    assert found.placement.layers == [(0, 32)]


def test_amount_form_is_what_was_asked_for_or_what_is_there():
    found = auto_map_paged(**MODEL, budget=PagedBudget(amount_bytes=GIB), devices=[cuda(24)])
    assert found.blocks == GIB // (32 * BLOCK)
    # 512 MiB of 2 GiB are reserve and 300 MiB activations, so nothing but KV would fit.
    found = auto_map_paged(
        **MODEL, budget=PagedBudget(amount_bytes=9 * GIB), devices=[cuda(2), cuda(24, 1), CPU]
    )
    assert found.blocks == (2 * GIB - 812 * MIB) // (32 * BLOCK)


def test_utilization_form_takes_what_the_weights_leave():
    found = auto_map_paged(**MODEL, budget=PagedBudget(utilization=0.9), devices=[cuda(24), CPU])
    usable = 24 * GIB - 512 * MIB
    left = int(usable * 0.9) - (32 * 200 + 500 + 300) * MIB
    assert found.blocks == left // (32 * BLOCK) > 4096 // 32
    assert found.placement.layers == [(0, 32)]


def test_model_larger_than_the_first_device_still_gets_its_length():
    found = auto_map_paged(**MODEL, budget=PagedBudget(utilization=0.9), devices=[cuda(5), cuda(6)])
    assert found.blocks == 4096 // 32
    assert [index for index, _ in found.placement.layers] == [0, 1]


def test_unified_memory_takes_no_more_than_the_planned_length():
    devices = [DeviceMemory("metal", 0, 24 * GIB)]
    found = auto_map_paged(**MODEL, budget=PagedBudget(utilization=0.9), devices=devices)
    assert found.blocks == 4096 // 32


def test_layers_on_the_cpu_end_paging_and_are_placed_again():
    """With the large paged cache 15 layers fit on the GPU, with the plain one 30 do."""
    budget = PagedBudget(context_tokens=65536)
    found = auto_map_paged(**MODEL, budget=budget, devices=[cuda(8), CPU])
    assert found.blocks is None
    room = 8 * GIB - 512 * MIB - 800 * MIB
    on_gpu = room // (200 * MIB + 4096 * 4096)
    assert found.placement.layers == [(0, on_gpu), (1, 32 - on_gpu)]


def test_no_block_at_all():
    with pytest.raises(DoesNotFit) as caught:
        auto_map_paged(**MODEL, budget=PagedBudget(amount_bytes=100), devices=[cuda(24)])
    assert caught.value.missing_bytes == 32 * BLOCK - 100


@pytest.mark.parametrize(
    "fields", [{}, {"amount_bytes": 1, "utilization": 0.5}, {"utilization": 0.5, "block_tokens": 7}]
)
def test_budget_has_one_form_and_a_known_block_size(fields):
    with pytest.raises(ValueError, match=r"budget|block size"):
        PagedBudget(**fields)
