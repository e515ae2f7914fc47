"""Write how many kernels a layer starts on a GPU, as the table `tests/gpu_launches.md`.

    python tests/families/gpu_launches.py

Of some configurations of the parity tests, without any files, on a GPU that is not there.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))

from native_calls import spec_of
from parity_cases import CASES

from mrs.architecture.family_registry import family_by_name
from mrs.architecture.parameters import list_parameters
from mrs.architecture.tensor_names import SAFETENSORS
from mrs.kernels.cuda.fragment_matrix import FragmentMatrix
from mrs.kernels.triton.plane_matrix import PlaneMatrix
from mrs.kernels.workspace.fragments import can_multiply
from mrs.model.batch import SequenceInput, forward_batch
from mrs.model.decoder import Decoder
from mrs.model.model_weights import ModelWeights
from mrs.plan.memory.cache_size import CacheSize
from mrs.quantization.gguf.fields import PLANE_LAYOUTS
from mrs.quantization.matrix import DenseMatrix, Matrix
from mrs.topology import is_expert
from support.fake_cuda import use_fake_cuda
from support.fake_gpu import FakeGpu
from support.fake_triton import use_fake_triton

TABLE = Path(__file__).parents[1] / "gpu_launches.md"
GPU = torch.device("cuda", 0)
ROWS = (1, 5, 16, 64)
#: Tokens of a prompt that is computed at once.
PROMPT_TOKENS = 128
#: By what is special about them: the names of families.
KINDS = {
    "dense, not quantized": ("llama",),
    "dense": ("llama",),
    "norms of heads": ("qwen3",),
    "norms around modules, windows": ("gemma3_text",),
    "sinks": ("gpt_oss",),
    "mixtures": ("mixtral", "qwen3_moe"),
    "latent attention": ("deepseek_v3",),
    "chosen keys": ("deepseek_v32",),
    "states": ("qwen3_next", "kimi_linear", "falcon_h1", "bamba", "jamba", "lfm2"),
}
_HEAD = """\
# Launches of a layer on a GPU

How many kernels a decode step of so many sequences, and a prompt of 128 tokens, start for a layer:
those of the project, in CUDA C++ and Triton, + operations of torch, without what only makes views
or memory, what all layers of a step share (angles, tables of blocks), and copies from and to the
host, which are counted after a comma. Matrices are in Q8_0, or in BF16 if they are not quantized.
Mixtures whose experts the host chooses are counted for one expert. Written by
`python tests/families/gpu_launches.py`.

| special | family | mixer, feed-forward | 1 row | 5 rows | 16 rows | 64 rows | prompt |
| --- | --- | --- | --- | --- | --- | --- | --- |
"""


def decoder_of(family: str, *, is_quantized: bool) -> Decoder:
    """The model of a family's first configuration on the GPU, without values."""
    case = next(case for case in CASES if case.family == family)
    spec = spec_of(case)
    matrices: dict[str, Matrix] = {}
    vectors: dict[str, Tensor] = {}
    for each in list_parameters(spec, {**SAFETENSORS, **family_by_name(family).safetensors}):
        if each.role in ("dense", "vector"):
            dtype = torch.bfloat16 if each.role == "dense" else torch.float32
            vectors[each.name] = torch.ones(each.shape, dtype=dtype, device=GPU)
        elif not is_quantized or each.shape[-1] % 32:
            dense = torch.empty(each.shape, dtype=torch.bfloat16, device=GPU)
            matrices[each.name] = DenseMatrix(dense)
        elif is_expert(each.name) or not can_multiply("Q8_0", *each.shape):
            matrices[each.name] = PlaneMatrix(PLANE_LAYOUTS["Q8_0"], *each.shape, GPU)
        else:
            matrices[each.name] = FragmentMatrix("Q8_0", *each.shape, GPU)
    devices = [GPU] * len(spec.layers)
    return Decoder(spec, ModelWeights(matrices, vectors), devices, torch.bfloat16, torch.bfloat16)


class CountedLayer:
    """A layer of a decoder, and the launches of its last step.

    If it is the first to make what layers share, it is computed once before it is counted.
    """

    def __init__(self, layer: Any, gpu: FakeGpu, launches: list[str], *, is_first: bool) -> None:
        self._layer, self._gpu, self._launches = layer, gpu, launches
        self._is_first, self.mixer = is_first, layer.mixer
        self.count = ""

    def __call__(self, x: Tensor, *others: Any) -> Tensor:
        if self._is_first:
            self._layer(x, *others)
        outside, inside = self._gpu.traffic, self._gpu.record()
        self._launches.clear()
        out: Tensor = self._layer(x, *others)
        copies = len(inside.from_host) + len(inside.to_host)
        self.count = f"{len(self._launches)} + {len(inside.launched)}"
        self.count += f", {copies}" if copies else ""
        self._gpu.traffic = outside
        return out


def _counted_layers(decoder: Decoder, gpu: FakeGpu, launches: list[str]) -> list[CountedLayer]:
    layers, shared = [], set()
    for spec, layer in zip(decoder.spec.layers, decoder.stack.layers, strict=True):
        shape = spec.mixer.cache_shape
        made = (spec.mixer.rope, shape.window) if shape.token_rows else None
        layers.append(CountedLayer(layer, gpu, launches, is_first=made not in {None, *shared}))
        shared.add(made)
    return layers


@torch.inference_mode()
def counts_of(family: str, *, is_quantized: bool = True) -> dict[str, list[str]]:
    """The counts for all numbers of rows, of the last layer of each kind."""
    counts: dict[str, list[str]] = {}
    with pytest.MonkeyPatch.context() as patch, FakeGpu() as gpu:
        launches = use_fake_triton(patch)
        use_fake_cuda(patch, launches)
        decoder = decoder_of(family, is_quantized=is_quantized)
        layers = _counted_layers(decoder, gpu, launches)
        decoder.stack.layers = layers  # type: ignore[assignment]
        for rows, tokens in (*((rows, 1) for rows in ROWS), (1, PROMPT_TOKENS)):
            space = decoder.new_space(CacheSize(2 * PROMPT_TOKENS, rows, PROMPT_TOKENS))
            caches = [space.new() for _ in range(rows)]
            inputs = [SequenceInput(cache, [1] * tokens) for cache in caches]
            decoder.forward(forward_batch(inputs), caches)
            of_rows = {
                ", ".join(type(part).__name__ for part in (spec.mixer, spec.feed_forward)): layer
                for spec, layer in zip(decoder.spec.layers, layers, strict=True)
            }
            for kind, layer in of_rows.items():
                counts.setdefault(kind, []).append(layer.count)
    return counts


def lines_of(special: str) -> Iterator[str]:
    """The lines of the table about families that are special in that way."""
    for family in KINDS[special]:
        made = counts_of(family, is_quantized=not special.endswith("not quantized"))
        for kind, counts in made.items():
            yield f"| {special} | {family} | {kind} | {' | '.join(counts)} |\n"


def table() -> str:
    return _HEAD + "".join(line for special in KINDS for line in lines_of(special))


if __name__ == "__main__":
    TABLE.write_text(table(), encoding="utf-8")
