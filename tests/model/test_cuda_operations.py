"""Layers by the CUDA kernels, which the CPU runs, compute what torch computes of them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

sys.path[:0] = [str(Path(__file__).parents[1] / "families")]

from native_calls import spec_of
from parity_cases import CASES

from mrs.architecture.family_registry import family_by_name
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.parameters import list_parameters
from mrs.architecture.tensor_names import SAFETENSORS
from mrs.formats import FORMATS
from mrs.kernels.cuda.fragment_matrix import FragmentMatrix
from mrs.kernels.workspace.fragments import MOST_TOKENS
from mrs.model import cuda_operations
from mrs.model.batch import SequenceInput, forward_batch
from mrs.model.decoder import Decoder
from mrs.model.model_weights import ModelWeights
from mrs.plan.memory.cache_size import CacheSize
from mrs.quantization.gguf import decode, requantize
from mrs.quantization.gguf.fields import split_blocks
from mrs.quantization.matrix import DenseMatrix, Matrix
from support.emulated_gpu import GXX, EmulatedGpu
from support.suites import suite_of

pytestmark = pytest.mark.skipif(
    GXX is None or sys.platform != "linux", reason="needs g++ and the contexts of Linux"
)
CPU = torch.device("cpu")
FORMAT = FORMATS["Q8_0"]
STEPS = 2
#: What each has that others have not.
FAMILIES = {
    "llama": "all operations in kernels",
    "qwen3": "norms of heads",
    "qwen2": "biases",
    "gemma3_text": "norms around modules, windows, another activation",
    "gpt_oss": "sinks, biases, experts",
    "mixtral": "a choice of experts",
    "qwen3_moe": "weights of experts that sum to 1",
    "deepseek_v3": "latent attention, sigmoid scores, shared experts",
    "glm4_moe": "sigmoid scores that are corrected",
    "olmo2": "no norm before a module",
    "cohere": "layer norms, parallel modules, interleaved rotation",
}
CORE, FULL = ("qwen3",), tuple(FAMILIES)


class Weights(NamedTuple):
    """Of chance: blocks of the matrices that have some, other matrices, and vectors."""

    blocks: dict[str, Tensor]
    floats: dict[str, Tensor]
    vectors: dict[str, Tensor]


def weights_of(spec: ModelSpec, family: str) -> Weights:
    generator = torch.Generator().manual_seed(0)
    made = Weights({}, {}, {})
    for each in list_parameters(spec, {**SAFETENSORS, **family_by_name(family).safetensors}):
        values = torch.randn(each.shape, generator=generator)
        if each.role in ("dense", "vector"):
            made.vectors[each.name] = values * 0.1 + ("norm" in each.name)
            continue
        scaled = values * each.shape[-1] ** -0.5
        if each.shape[-1] % 32 or each.shape[0] % 16:
            made.floats[each.name] = scaled
        else:
            rows = scaled.view(torch.uint8)
            made.blocks[each.name] = requantize(rows, FORMATS["F32"], FORMAT)
    return made


def decoder_of(spec: ModelSpec, weights: Weights, gpu: EmulatedGpu | None) -> Decoder:
    """With matrices in fragment order for a GPU, else with floats."""
    matrices: dict[str, Matrix] = {
        name: DenseMatrix(values) for name, values in weights.floats.items()
    }
    for name, data in weights.blocks.items():
        if gpu is None:
            matrices[name] = DenseMatrix(decode(data, FORMAT, torch.float32))
            continue
        columns = data.shape[1] // FORMAT.block_bytes * FORMAT.block_elements
        matrix = FragmentMatrix(FORMAT.name, len(data), columns, CPU, gpu)
        matrix.fill(split_blocks(data, FORMAT))
        matrices[name] = matrix
    devices = [CPU] * len(spec.layers)
    return Decoder(
        spec, ModelWeights(matrices, weights.vectors), devices, torch.float32, torch.float32
    )


def logits_of(decoder: Decoder, prompt: Sequence[int] = (3, 1, 4, 1, 5)) -> list[Tensor]:
    """Those of two prompts, and then of steps of both."""
    space = decoder.new_space(CacheSize(2 * (len(prompt) + STEPS + 1), 2, len(prompt)))
    caches, found = [space.new(), space.new()], []
    for tokens in (prompt, *[[9]] * STEPS):
        rows = range(len(tokens))
        inputs = [SequenceInput(cache, tokens, logits_rows=rows) for cache in caches]
        found.append(decoder.forward(forward_batch(inputs), caches))
    return found


def use(monkeypatch: pytest.MonkeyPatch, gpu: EmulatedGpu) -> None:
    """Let layers that are built from now on have the kernels."""
    monkeypatch.setattr(cuda_operations, "device_launcher", lambda device: gpu)
    for check in ("has_cuda_products", "has_cuda_rows"):
        monkeypatch.setattr(cuda_operations, check, lambda *_: True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("emulated")


@pytest.mark.parametrize(
    "family", [pytest.param(each, marks=suite_of(each, CORE, FULL)) for each in FAMILIES]
)
def test_a_model(family: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = spec_of(next(case for case in CASES if case.family == family))
    weights = weights_of(spec, family)
    gpu = EmulatedGpu(folder)
    wanted = logits_of(decoder_of(spec, weights, None))
    use(monkeypatch, gpu)
    found = logits_of(decoder_of(spec, weights, gpu))
    assert any(kernel.name == "products" for kernel, _ in gpu.launched)
    for ours, theirs in zip(found, wanted, strict=True):
        assert float((ours - theirs).norm() / theirs.norm()) < 5e-3


@pytest.mark.full
@pytest.mark.parametrize("family", ["qwen2", "gemma3_text", "mixtral"])
def test_a_long_prompt(family: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more tokens than a launch multiplies."""
    spec = spec_of(next(case for case in CASES if case.family == family))
    weights, prompt = weights_of(spec, family), [n % 50 for n in range(MOST_TOKENS // 2 + 1)]
    gpu = EmulatedGpu(folder)
    wanted = logits_of(decoder_of(spec, weights, None), prompt)
    use(monkeypatch, gpu)
    found = logits_of(decoder_of(spec, weights, gpu), prompt)
    assert {"decode", "normalize", "rotate", "products"} <= {each.name for each, _ in gpu.launched}
    for ours, theirs in zip(found, wanted, strict=True):
        assert float((ours - theirs).norm() / theirs.norm()) < 5e-3
