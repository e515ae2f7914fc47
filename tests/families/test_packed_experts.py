"""Every expert is a matrix of its own: packed as the file has it, or quantized as it lands."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf_files import write_gguf
from parity_cases import CASES
from running import Conversation, difference

from mrs.architecture.describe import describe
from mrs.devices.probe import probe_devices
from mrs.kernels.cpu.library import is_available
from mrs.kernels.cpu.packed import PackedMatrix
from mrs.load.load import load_weights
from mrs.model.decoder import Decoder
from mrs.model.model_weights import ModelWeights
from mrs.plan.memory.stored_weights import ModelWeightsInfo
from mrs.plan.plan import make_plan
from mrs.request import ModelSource, RunRequest
from mrs.source.find import open_checkpoint

pytestmark = pytest.mark.skipif(not is_available(), reason="the native kernels were not built")
BY_ID = {case.id: case for case in CASES}
FORMAT = gguf.GGMLQuantizationType.Q8_0


def load_packed(source: ModelSource, isq: str | None = None) -> tuple[Decoder, ModelWeights]:
    checkpoint = open_checkpoint(source)
    description = describe(checkpoint)
    request = RunRequest(source, dtype="f32", cpu=True, max_seq_len=64, isq=isq)
    devices = probe_devices(what_if=(), cpu_only=True)
    made = make_plan(request, ModelWeightsInfo(checkpoint, description), devices, cpu_packs=True)
    cpu = torch.device("cpu")
    places = {p.name: cpu for p in description.parameters}
    weights = load_weights(
        checkpoint, description.parameters, made.storage, places, lambda name, size: None
    )
    layers = [cpu] * len(description.spec.layers)
    return Decoder(description.spec, weights, layers, torch.float32), weights


def quantized_copy(source: Path, target: Path, arch: str) -> dict[str, np.ndarray]:
    """A GGUF file whose stacked experts are Q8_0; returns what those stand for."""
    reader, writer = gguf.GGUFReader(source), gguf.GGUFWriter(target, arch)
    for name, entry in reader.fields.items():
        if not name.startswith(("GGUF.", "general.architecture")):
            writer.add_key_value(name, entry.contents(), entry.types[0])
    meant = {}
    for tensor in reader.tensors:
        if tensor.name.endswith("_exps.weight"):
            blocks = gguf.quants.quantize(tensor.data, FORMAT)
            meant[tensor.name] = gguf.quants.dequantize(blocks, FORMAT)
            writer.add_tensor(tensor.name, blocks, raw_dtype=FORMAT)
        else:
            writer.add_tensor(tensor.name, tensor.data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return meant


def test_stacked_experts_stay_as_they_are_stored(tmp_path: Path, references) -> None:
    truth = references(BY_ID["mixtral-default"])
    plain, packed = tmp_path / "plain.gguf", tmp_path / "packed.gguf"
    write_gguf(truth, plain)
    meant = quantized_copy(plain, packed, "llama")
    decoder, weights = load_packed(ModelSource(str(packed), "gguf"))
    experts = truth.config.num_local_experts
    for layer in range(2):
        for part in ("gate", "up", "down"):
            for expert in range(experts):
                matrix = weights.matrix(f"layers.{layer}.ffn.experts.{expert}.{part}")
                assert isinstance(matrix, PackedMatrix)
                assert matrix.format_name == "Q8_0"
                expected = meant[f"blk.{layer}.ffn_{part}_exps.weight"][expert]
                assert np.array_equal(matrix.decode().numpy(), expected)
    logits = Conversation(decoder).feed(truth.steady_prompt)
    assert difference(logits, truth.steady_logits) < 2e-2


@pytest.mark.few(1)
@pytest.mark.parametrize("case", ["qwen2_moe-default", "gpt_oss-odd", "deepseek_v2-default"])
def test_experts_are_quantized_as_they_land(references, case: str) -> None:
    """Wherever they come from: tensors of their own, or rows of transposed stacks."""
    truth = references(BY_ID[case])
    decoder, weights = load_packed(ModelSource(str(truth.folder), "safetensors"), isq="q8_0")
    layer = len(decoder.spec.layers) - 1
    widths = {"gate": (64,), "up": (64,), "down": (32, 96)}
    for part, columns in widths.items():
        matrix = weights.matrix(f"layers.{layer}.ffn.experts.1.{part}")
        if matrix.shape[1] in columns:
            assert isinstance(matrix, PackedMatrix)
            assert matrix.format_name == "Q8_0"
    logits = Conversation(decoder).feed(truth.steady_prompt)
    assert difference(logits, truth.steady_logits) < 5e-2
