"""KV bytes against what real runs reported, to the byte where they report exactly."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mrs.formats import KVFormat, kv_format_of
from mrs.layers.attention.spec import Attention
from mrs.layers.gated_delta_net.spec import GatedDeltaNet
from mrs.layers.latent_attention.spec import LatentAttention
from mrs.layers.layer import Layer
from mrs.layers.mlp.spec import Mlp
from mrs.layers.norm.spec import Norm
from mrs.layers.rope.spec import Rope
from mrs.plan.memory.cache_size import CacheSize
from mrs.plan.memory.kv_bytes import (
    layer_kv_bytes,
)
from support.library_cache import cache_of

MIB = 1024**2
GIB = 1024**3
VECTORS = Path(__file__).parent / "vectors"
EXACT = json.loads((VECTORS / "kv_cache_exact.json").read_text())["cases"]
TOTALS = json.loads((VECTORS / "reported_totals.json").read_text())
BY_BYTES = {2: kv_format_of("F16"), 1.0625: kv_format_of("Q8_0")}


@pytest.mark.parametrize("case", EXACT, ids=lambda case: case["model"])
def test_reported_caches_to_the_byte(case):
    kv_format = BY_BYTES[case["bytes_per_elem"]]
    widths = [case["kv_heads"] * case[dim] for dim in ("k_dim", "v_dim")]
    one_layer = kv_format.rows_bytes(widths, case["cells"])
    assert one_layer * case["kv_layers"] == case["expect_mib"] * MIB


def test_each_sequence_has_a_state() -> None:
    net = GatedDeltaNet(2, 4, 8, 16, 4, Norm(1e-6))
    layer = Layer(net, Mlp(64), Norm(1e-6))
    for sequences in (1, 3):
        found = layer_kv_bytes(layer, CacheSize(100, sequences, 512), kv_format_of("BF16"))
        assert found == sequences * 4 * net.cache_shape.state_values


@pytest.mark.parametrize("case", [c for c in EXACT if c["v_dim"] == 0], ids=lambda c: c["model"])
def test_latent_attention_to_the_byte(case):
    mla = LatentAttention(16, 128, 128, 512, None, 1.0, Rope(64, 1e4), Norm(1e-6))
    one_layer = kv_format_of("BF16").rows_bytes(mla.cache_shape.token_rows, case["cells"])
    assert one_layer * case["kv_layers"] == case["expect_mib"] * MIB


def gemma3_mib(context: int, layers: tuple[int, int], kv_heads: int, dim: int, chunk: int) -> float:
    """A model of global layers and layers with a window of 1024 tokens, f16."""
    whole, windowed = layers
    size = CacheSize(context, 1, chunk + 1, block_tokens=1)
    cells = size.blocks(size.window_of(1024))
    rows = Attention(kv_heads, kv_heads, dim, 1.0, None).cache_shape.token_rows
    total = whole * kv_format_of("F16").rows_bytes(rows, context)
    total += windowed * kv_format_of("F16").rows_bytes(rows, cells)
    return total / MIB


def reported(source: str, model: str) -> dict:
    found = [
        row
        for row in TOTALS["totals_measured"]
        if row["source"] == source and model in row.get("model", "") + row.get("cmd", "")
    ]
    assert len(found) == 1
    return found[0]


def test_sliding_window_models_in_whole():
    measured = reported("ollama PR#17037", "gemma3:4b")["mib"]["kv"]
    assert gemma3_mib(131072, (5, 29), 4, 256, 512) == measured
    fit = reported("ggml-org/llama.cpp PR#22171", "gemma-3-4b-it")
    assert gemma3_mib(32768, (5, 29), 4, 256, 512) == fit["rows"][0][2]


# (model, layers, KV heads, key and value numbers a head and token, tokens), from their configs.
@pytest.mark.parametrize(
    ("model", "layers", "kv_heads", "numbers", "tokens"),
    [
        ("DeepSeek-V3.1 naive", 61, 1, 576, 163840),
        ("Kimi-K2.5 naive", 61, 1, 576, 262144),
        ("Qwen3-0.6B naive", 28, 8, 256, 40960),
        ("Qwen3.5 27B naive", 16, 4, 512, 262144),
    ],
)
def test_models_whose_naive_estimates_failed(model, layers, kv_heads, numbers, tokens):
    actual = {row[0]: row[2] for row in TOTALS["estimate_vs_actual_failures"]}[model]
    total = layers * kv_format_of("F16").rows_bytes([kv_heads * numbers], tokens)
    # Published with two digits after the point.
    assert total / GIB == pytest.approx(actual, abs=0.006)


def test_gemma3_27b_with_its_window():
    actual = {row[0]: row[2] for row in TOTALS["estimate_vs_actual_failures"]}
    total = gemma3_mib(131072, (10, 52), 16, 128, 0) / 1024
    assert total == pytest.approx(actual["Gemma-3 27B naive KV 128k GB"], abs=0.006)


def test_window_is_never_longer_than_the_context():
    assert CacheSize(100, 1, 512).window_of(1024) is None
    assert 64 * CacheSize(100, 1, 512).blocks() == 128
    # A window and a chunk, and a block more where they do not begin with one.
    assert 64 * CacheSize(5000, 1, 512).blocks(1024) == 1536 + 64


@pytest.mark.parametrize(("tokens", "block", "cells"), [(1, 32, 32), (32, 32, 32), (33, 16, 48)])
def test_paged_cells_are_whole_blocks(tokens, block, cells):
    assert block * CacheSize(tokens, 1, 512, block).blocks() == cells


@pytest.mark.parametrize("name", ["F32", "BF16", "F8_E4M3", "Q8_0", "Q4_0"])
def test_every_kv_type_counts_its_own_bits(name):
    kv_format: KVFormat = kv_format_of(name)
    one = kv_format.rows_bytes((8 * 128, 8 * 64), 4096)
    assert one == 4096 * 8 * (128 + 64) * kv_format.keys.bits_per_weight / 8
    assert kv_format.rows_bytes((8 * 128, 8 * 64), 3 * 4096) == 3 * one


def test_numbers_that_cut_a_block_are_refused():
    with pytest.raises(ValueError, match="Q8_0"):
        kv_format_of("Q8_0").rows_bytes((80, 80), 10)


def test_states_equal_those_of_a_reference_model():
    """Gated linear attention and its convolution, as transformers allocates them."""
    import torch
    from transformers import Qwen3NextConfig, Qwen3NextForCausalLM

    config = Qwen3NextConfig(
        vocab_size=32,
        hidden_size=32,
        intermediate_size=32,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
        num_experts=2,
        num_experts_per_tok=1,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=8,
        linear_value_head_dim=16,
        linear_conv_kernel_dim=4,
        layer_types=["linear_attention", "full_attention"],
    )
    torch.manual_seed(0)
    model = Qwen3NextForCausalLM(config).float().eval()
    with torch.inference_mode():
        cache = cache_of(model(torch.arange(7)[None], use_cache=True))
    states = cache.layers[0]
    net, longer = (GatedDeltaNet(2, 4, 8, 16, kernel, Norm(1e-6)).cache_shape for kernel in (4, 5))
    # Keys and queries of 2 x 8 and values of 4 x 16 pass through the convolution. The reference
    # keeps one input more than the three that a kernel of four needs.
    conv, recurrent = states.conv_states[0].nbytes, states.recurrent_states[0].nbytes
    assert conv + recurrent == 4 * longer.state_values
    assert net.state_values == longer.state_values - (2 * 2 * 8 + 4 * 16)


def test_a_layer_from_its_description():
    def layer(window: int | None) -> Layer:
        mixer = Attention(heads=8, kv_heads=4, head_dim=256, scale=1.0, rope=None, window=window)
        return Layer(mixer, Mlp(64), Norm(1e-6))

    one, four = (CacheSize(131072, sequences, 512) for sequences in (1, 4))
    bf16 = kv_format_of("BF16")
    assert 5 * layer_kv_bytes(layer(None), one, bf16) == 2560 * MIB
    one_block = 64 * 4 * 256 * 2 * 2
    assert layer_kv_bytes(layer(1024), one, bf16) == 6 * MIB + one_block
    assert layer_kv_bytes(layer(1024), four, bf16) == 4 * (6 * MIB + one_block)
