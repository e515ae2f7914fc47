"""Quantized weights stay quantized wherever they go, in the bytes that were planned."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1] / "kernels"))

from packed_blocks import random_blocks

from mrs.architecture.describe import describe
from mrs.architecture.description import Description
from mrs.devices.device import Device
from mrs.formats import FORMATS
from mrs.kernels.cpu.library import native_library
from mrs.kernels.cuda.fragment_matrix import FragmentMatrix
from mrs.kernels.huge_pages import HugePageArena
from mrs.kernels.triton.plane_matrix import PlaneMatrix
from mrs.kernels.workspace.fragments import fragment_workspace_bytes
from mrs.layers.forward_pass import ForwardShape, product_bytes
from mrs.load import tensor_reader
from mrs.load.load import load_weights
from mrs.model.decoder import Decoder
from mrs.model.model_weights import ModelWeights
from mrs.plan.memory.device_sizes import DeviceSizes, ModelSizes, Workload
from mrs.plan.memory.stored_weights import ModelWeightsInfo
from mrs.quantization import targets
from mrs.quantization.gguf.fields import split_blocks
from mrs.quantization.isq import parse_isq
from mrs.quantization.matrix import BlockMatrix
from mrs.quantization.storage import Storage
from mrs.request import ModelSource, Sampling
from mrs.source.checkpoint import Checkpoint
from mrs.source.find import open_checkpoint
from mrs.weights.binding import Parameter
from support.engines import generate, make_engine
from support.fake_cuda import use_fake_cuda
from support.fake_gpu import FakeGpu
from support.model_files import write_model

CPU = torch.device("cpu")
GPU = Device("cuda", 0, "a GPU", 1 << 34, 1 << 34, "cuda:0")
TINY: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 320,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 301,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Checkpoint, Description]:
    folder = write_model(tmp_path_factory.mktemp("blocks"), TINY, "BF16")
    checkpoint = open_checkpoint(ModelSource(str(folder), "safetensors"))
    return checkpoint, describe(checkpoint)


def sizes_on(model: tuple[Checkpoint, Description], device: Device, **changes: Any) -> DeviceSizes:
    options: dict[str, Any] = {"isq": parse_isq("q4k"), "cpu_packs": True, **changes}
    return ModelSizes(ModelWeightsInfo(*model), Workload(64, 1), FORMATS["BF16"], **options).on(
        device
    )


def load(model: tuple[Checkpoint, Description], sizes: DeviceSizes) -> ModelWeights:
    checkpoint, description = model
    places = {parameter.name: CPU for parameter in description.parameters}
    parameters = description.parameters
    return load_weights(checkpoint, parameters, sizes.storage, places, lambda name, size: None)


@pytest.mark.parametrize("kind", ["cuda", "metal"])
def test_accelerators_keep_blocks(model: tuple[Checkpoint, Description], kind: str) -> None:
    device = Device(kind, 0, "a GPU", 1 << 34, 1 << 34, "mps" if kind == "metal" else "cuda:0")  # type: ignore[arg-type]
    storage = sizes_on(model, device).storage
    kept = {name: (s.format.name, s.form) for name, s in storage.items()}
    assert kept["layers.1.mixer.q.weight"] == ("Q4_K", "blocks")
    assert kept["layers.1.ffn.down.weight"] == ("Q5_0", "blocks")  # 320 columns
    assert kept["embedding.weight"] == ("Q6_K", "blocks")
    assert kept["norm.weight"] == ("F32", "plain")
    assert storage["embedding.weight"].size_bytes == 301 * 210
    dense = sizes_on(model, device, isq=None).storage
    assert {s.form for s in dense.values()} == {"plain"}


def test_a_cpu_without_native_kernels_keeps_blocks(model: tuple[Checkpoint, Description]) -> None:
    cpu = Device("cpu", 0, "CPU", 1 << 34, 1 << 34, "cpu")
    without = sizes_on(model, cpu, cpu_packs=False).storage
    assert without == sizes_on(model, GPU).storage
    assert "blocks" not in {s.form for s in sizes_on(model, cpu).storage.values()}


@pytest.mark.parametrize("planes", [False, True])
def test_what_is_planned_for_a_gpu_is_loaded(
    model: tuple[Checkpoint, Description], planes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loaded on a CPU, which can hold both kinds of matrices but has no kernels for planes."""
    monkeypatch.setattr(targets, "_has_triton_kernels", lambda device, layouts: planes)
    monkeypatch.setattr(targets, "_BLOCK_CHUNK_WEIGHTS", 7 * 256)  # rows come in several parts
    sizes = sizes_on(model, GPU)
    weights = load(model, sizes)
    held = sum(sizes.layer_bytes) + sizes.non_mapped_bytes
    assert weights.bytes_by_device() == {CPU: held}
    matrix = weights.matrix("embedding")
    assert isinstance(matrix, PlaneMatrix if planes else BlockMatrix)


def test_fragments_are_loaded_as_they_are_planned(
    model: tuple[Checkpoint, Description], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has no whole tiles, or a format without kernels, lies otherwise."""
    monkeypatch.setattr(targets, "has_cuda_products", lambda device, name: True)
    monkeypatch.setattr(targets, "_BLOCK_CHUNK_WEIGHTS", 7 * 256)
    monkeypatch.setattr(tensor_reader, "load_chunk_weights", lambda threads: 23 * 256)
    sizes = sizes_on(model, GPU)
    weights = load(model, sizes)
    held = sum(sizes.layer_bytes) + sizes.non_mapped_bytes
    assert weights.bytes_by_device() == {CPU: held}
    assert isinstance(weights.matrix("embedding"), BlockMatrix)  # 301 rows
    layer = weights.layer(1)
    assert isinstance(layer.matrix("ffn.down"), BlockMatrix)  # Q5_0
    monkeypatch.undo()
    in_blocks = load(model, sizes).layer(1)
    for slot in ("mixer.q", "mixer.k", "ffn.gate"):
        matrix, wanted = layer.matrix(slot), in_blocks.matrix(slot)
        assert isinstance(matrix, FragmentMatrix)
        fields = split_blocks(wanted._blocks, FORMATS[matrix.name])  # type: ignore[attr-defined]
        found = matrix.format.unpack(matrix.data)
        for ours, theirs in zip(found, fields, strict=True):
            assert (ours is None) == (theirs is None)
            assert ours is None or torch.equal(ours, theirs)


def test_pieces_that_are_no_whole_tiles_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a matrix that a file has in pieces of 5, 27 and 16 rows."""
    monkeypatch.setattr(targets, "has_cuda_products", lambda device, name: True)
    kind = FORMATS["Q8_0"]
    blocks = random_blocks("Q8_0", 48, 64)
    parameter = Parameter("layers.0.mixer.q.weight", (48, 64), "matrix", 0, ())
    target = targets.BlockTarget(parameter, Storage(kind, 0, "blocks"), CPU, HugePageArena([]))
    for piece in torch.split(blocks, [5, 27, 16]):
        target.add(piece, kind, None)
    matrix = target.matrix()
    assert isinstance(matrix, FragmentMatrix)
    assert torch.equal(matrix.format.unpack(matrix.data).codes, split_blocks(blocks, kind).codes)


@pytest.mark.parametrize("tokens", [1, 16, 64, 65, 512])
@pytest.mark.parametrize(("rows", "columns"), [(16, 256), (6144, 4096), (128256, 4096)])
def test_what_products_with_fragments_allocate_is_planned(
    tokens: int, rows: int, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU that is not there: the result, and partial sums or a panel of decoded rows."""
    use_fake_cuda(monkeypatch, [])
    with FakeGpu() as gpu:
        gpu_0 = torch.device("cuda", 0)
        matrix = FragmentMatrix("Q4_K", rows, columns, gpu_0)
        assert matrix.launcher.counters.device == gpu_0
        x = torch.empty(tokens, columns, dtype=torch.bfloat16, device=gpu_0)
        recorded = gpu.record()
        matrix.matmul(x)
    # `contiguous` of the fake GPU is a copy of what is contiguous, too.
    result, *others = (each for each in recorded.allocated if each != (tokens, columns))
    value_bytes = 2 if tokens > 64 else 4
    allocated = value_bytes * sum(math.prod(shape) for shape in others)
    planned = fragment_workspace_bytes(tokens, columns, rows, 2)
    assert result == (tokens, rows)
    assert allocated == planned
    shape = ForwardShape(tokens, tokens, tokens, FORMATS["BF16"], FORMATS["BF16"])
    whole = product_bytes(shape, columns, rows, Storage(FORMATS["Q4_K"], 0, "blocks"))
    assert whole >= planned + 2 * tokens * rows


def test_all_forms_hold_the_same_numbers(
    model: tuple[Checkpoint, Description], monkeypatch: pytest.MonkeyPatch
) -> None:
    def values(sizes: DeviceSizes) -> list[Tensor]:
        loaded = load(model, sizes)
        matrices = (loaded.matrix("embedding"), loaded.layer(1).matrix("ffn.down"))
        return [matrix.rows(torch.arange(matrix.shape[0]), torch.float32) for matrix in matrices]

    on_gpu = sizes_on(model, GPU)
    monkeypatch.setattr(targets, "_has_triton_kernels", lambda device, layouts: True)
    in_planes = values(on_gpu)
    monkeypatch.undo()
    in_blocks = values(on_gpu)
    cpu = Device("cpu", 0, "CPU", 1 << 34, 1 << 34, "cpu")
    on_cpu = values(sizes_on(model, cpu, cpu_packs=native_library() is not None))
    for a, b, c in zip(in_planes, in_blocks, on_cpu, strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a, c)


def test_a_model_in_blocks_answers(model: tuple[Checkpoint, Description]) -> None:
    """The same tokens as with the same weights as dense float32."""
    spec = model[1].spec
    weights = load(model, sizes_on(model, GPU))
    answers = []
    for made in (weights, dense_copy(weights, model[1])):
        decoder = Decoder(spec, made, [CPU] * len(spec.layers), torch.float32)
        engine = make_engine(decoder, planned_tokens=64, context_tokens=64)
        answers.append(generate(engine, [5, 3, 200, 7], Sampling(temperature=0, max_tokens=12)))
    assert len(answers[0]) == 12
    assert answers[0] == answers[1]


def dense_copy(weights: ModelWeights, description: Description) -> ModelWeights:
    from mrs.quantization.matrix import DenseMatrix

    matrices, vectors = {}, {}
    for parameter in description.parameters:
        if parameter.role in ("vector", "dense"):
            vectors[parameter.name] = weights.vector(parameter.name)
        else:
            matrix = weights.matrix(parameter.name.removesuffix(".weight"))
            rows = matrix.rows(torch.arange(matrix.shape[0]), torch.float32)
            matrices[parameter.name] = DenseMatrix(rows)
    return ModelWeights(matrices, vectors)
