"""Predicted activations bound what the engine allocates, closely."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from mrs.architecture.describe import describe
from mrs.devices.device import Device
from mrs.engine.profile.peak_memory import peak_bytes
from mrs.engine.profile.run import profile_run
from mrs.formats import FORMATS, kv_format_of
from mrs.kernels.cpu.library import is_available
from mrs.load.load import load_weights
from mrs.load.tensor_reader import TORCH_DTYPES
from mrs.model.decoder import Decoder
from mrs.plan.memory.cache_size import CacheSize
from mrs.plan.memory.device_sizes import DeviceSizes, ModelSizes, Workload
from mrs.plan.memory.stored_weights import ModelWeightsInfo
from mrs.quantization.gguf import decode
from mrs.quantization.gguf.codec import DECODERS
from mrs.quantization.isq import parse_isq
from mrs.quantization.workspace import decoding_bytes
from mrs.request import ModelSource
from mrs.source.find import open_checkpoint
from support.model_files import write_model
from support.suites import first

CONTEXT_TOKENS = 1024
BASE: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 2048,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama"},
    "one group": {"model_type": "llama", "num_key_value_heads": 8},
    "wide": {"model_type": "llama", "intermediate_size": 4096, "num_key_value_heads": 8},
    "biased": {"model_type": "llama", "attention_bias": True, "mlp_bias": True},
    "qkv biased": {"model_type": "qwen2"},
    "norms and odd heads": {"model_type": "qwen3", "head_dim": 64},
    "window": {"model_type": "mistral", "sliding_window": 256},
    "softcap": {"model_type": "gemma2", "head_dim": 32, "sliding_window": 256},
    "softcap, one key head": {"model_type": "gemma2", "head_dim": 32, "num_key_value_heads": 1},
    "sandwich": {"model_type": "gemma3_text", "head_dim": 32, "sliding_window": 128},
    "large vocabulary": {"model_type": "gemma2", "head_dim": 32, "vocab_size": 24000},
    "parallel, half turned": {"model_type": "phi", "num_key_value_heads": 8},
}
CPU = Device("cpu", 0, "CPU", 1 << 40, 1 << 40, "cpu")
pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.pairs]


def measured_and_predicted(
    folder: Path,
    dtype: str,
    isq: str | None = None,
    context_tokens: int = CONTEXT_TOKENS,
    last_device: torch.device | None = None,
) -> tuple[int, int]:
    """Activation bytes of the CPU, which a `last_device` for the last layer shares."""
    source = ModelSource(str(folder), "safetensors")
    checkpoint = open_checkpoint(source)
    description = describe(checkpoint)
    files = ModelWeightsInfo(checkpoint, description)
    dense = files.dense_format(dtype)
    sizes = ModelSizes(
        files,
        Workload(context_tokens, 1),
        dense,
        isq and parse_isq(isq),
        cpu_packs=is_available(),
    ).on(CPU)
    cpu = torch.device("cpu")
    places = {p.name: cpu for p in description.parameters}
    weights = load_weights(
        checkpoint, description.parameters, sizes.storage, places, lambda name, size: None
    )
    layers = [*[cpu] * (len(description.spec.layers) - 1), last_device or cpu]
    decoder = Decoder(description.spec, weights, layers, TORCH_DTYPES[dense.name])
    seen = profile_run(decoder, CacheSize(context_tokens, 1, 512))
    assert seen.kv_bytes[cpu] == sum(sizes.kv_bytes)
    return seen.activation_bytes[cpu], predicted(sizes)


def predicted(sizes: DeviceSizes) -> int:
    return max(sizes.mapped_act_bytes, sizes.non_mapped_act_bytes)


@pytest.mark.few(6)
@pytest.mark.values
@pytest.mark.parametrize("model", MODELS)
def test_the_measured_peak_is_bounded(tmp_path: Path, path: str, model: str) -> None:
    folder = write_model(tmp_path, {**BASE, **MODELS[model]})
    measured, bound = measured_and_predicted(folder, "bf16")
    assert measured <= bound <= 1.15 * measured


@pytest.mark.few("amx-None")
@pytest.mark.values
@pytest.mark.parametrize("last_device", [None, torch.device("cpu", 0)])
def test_keys_that_another_device_has(
    tmp_path: Path, path: str, last_device: torch.device | None
) -> None:
    """Torch attends to them, not the native library: the plan has room for that, too."""
    heads = {"num_attention_heads": 32, "num_key_value_heads": 4, "num_kv_shared_layers": 1}
    shape = {"head_dim": 64, "global_head_dim": 64, "hidden_size_per_layer_input": 0}
    kinds = {"layer_types": ["full_attention"] * 2, "sliding_window": 128}
    config = {**BASE, **heads, **shape, **kinds, "model_type": "gemma4_text"}
    folder = write_model(tmp_path, config, "BF16")
    measured, bound = measured_and_predicted(folder, "bf16", last_device=last_device)
    assert measured <= bound <= 1.15 * measured


@pytest.mark.few(1)
@pytest.mark.values
@pytest.mark.parametrize("isq", ["q4k", "q6k", "q8_0"])
@pytest.mark.parametrize(
    "model", first(3, ["wide", "norms and odd heads", "qkv biased", "llama", "biased"])
)
def test_quantized_weights(tmp_path: Path, path: str, model: str, isq: str) -> None:
    folder = write_model(tmp_path, {**BASE, **MODELS[model]}, "BF16")
    measured, bound = measured_and_predicted(folder, "bf16", isq=isq)
    assert measured <= bound <= 1.15 * measured


@pytest.mark.full
@pytest.mark.values
@pytest.mark.parametrize("isq", ["q4k", "q6k", "q8_0"])
@pytest.mark.parametrize("model", first(1, ["llama", "wide"]))
def test_lower_paths(tmp_path: Path, lower_path: str, model: str, isq: str) -> None:
    folder = write_model(tmp_path, {**BASE, **MODELS[model]}, "BF16")
    measured, bound = measured_and_predicted(folder, "bf16", isq=isq)
    assert measured <= bound <= 1.15 * measured


@pytest.mark.full
@pytest.mark.values
@pytest.mark.parametrize("isq", first(1, [None, "q4k"]))
def test_several_threads(
    tmp_path: Path, path: str, isq: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What torch takes in threads of ours is not seen, so the bound may be further off."""
    monkeypatch.setattr("mrs.plan.memory.device_sizes.cpu_threads", lambda: 3)
    torch.set_num_threads(3)
    folder = write_model(tmp_path, {**BASE, **MODELS["wide"], "hidden_size": 512}, "BF16")
    measured, bound = measured_and_predicted(folder, "bf16", isq=isq)
    assert measured <= bound


def test_decoding_takes_what_is_planned() -> None:
    """For every format, with what is not one of its blocks left out."""
    run = Workload(8, 1).forward_shapes(
        FORMATS["BF16"], kv_format_of("BF16"), on_cpu=True, native=False
    )[0]
    for name, decoder in DECODERS.items():
        format, numbers = FORMATS[name], 1 << 17
        blocks = torch.zeros(numbers // format.block_elements, format.block_bytes).byte()
        decoder(blocks[:4])  # tables are made once
        measured = peak_bytes(
            lambda format=format, blocks=blocks: decode(blocks, format), torch.device("cpu")
        )
        bound = decoding_bytes(name, numbers, run.activation.block_bytes, run.threads)
        assert measured <= bound <= 1.15 * measured, name


@pytest.mark.full
@pytest.mark.values
@pytest.mark.parametrize("model", ["llama", "wide", "softcap"])
def test_float32(tmp_path: Path, path: str, model: str) -> None:
    folder = write_model(tmp_path, {**BASE, **MODELS[model]})
    measured, bound = measured_and_predicted(folder, "f32")
    assert measured <= bound <= 1.15 * measured


def test_a_short_context(tmp_path: Path) -> None:
    folder = write_model(tmp_path, {**BASE, **MODELS["llama"]})
    measured, bound = measured_and_predicted(folder, "f32", context_tokens=512)
    assert measured <= bound <= 1.15 * measured
