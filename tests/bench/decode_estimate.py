"""A decode step's time on an NVIDIA GPU, estimated from its launches and the bytes they move.

    python tests/bench/decode_estimate.py [--tb-s 4.8] [--launch-us 1.3] [--context 512]
        [--formats BF16 Q4_K_M]

Needs no GPU: Llama 3.1 8B decodes on tensors without values, and every launch of the captured step
is counted. `read` are the bytes of weights, cache and activations that a launch must read or write,
each once. `L1` are those that its programs ask for: each reads all activations, mostly from the L1
caches of 132 multiprocessors with 128 bytes a cycle at 1.7 GHz. A launch takes a fixed time and
the longer of the two. The fixed time, from the end of a kernel to that of an empty one after it in
a graph, is an assumption (published for an H100), as is the bandwidth (the H200's data sheet); on a
GPU `tests/gpu.py` measures what this estimates.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

sys.path.insert(0, str(Path(__file__).parents[1]))
from mrs.architecture.family_registry import families
from mrs.architecture.parameters import list_parameters
from mrs.architecture.tensor_names import SAFETENSORS
from mrs.config.config import Config
from mrs.engine import engine_builder
from mrs.kernels.triton.plane_matrix import PlaneMatrix
from mrs.model.decoder import Decoder
from mrs.model.model_weights import ModelWeights
from mrs.quantization.gguf.fields import PLANE_LAYOUTS
from mrs.quantization.matrix import DenseMatrix, Matrix
from mrs.request import Sampling
from mrs.weights.binding import Parameter
from support import fake_gpu
from support.captured_steps import FakeCapture
from support.engines import Asked, make_engine
from support.fake_gpu import FakeGpu, starts_kernel
from support.fake_triton import KERNELS, use_fake_triton

GPU = torch.device("cuda", 0)
L1_BYTES_S = 132 * 128 * 1.7e9
LAYERS = 32
LLAMA_8B = {
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
}
GREEDY = Sampling(temperature=0, frequency_penalty=0, presence_penalty=0, max_tokens=8)


@dataclass(frozen=True)
class Launch:
    """A kernel and the bytes of its memory; `l1_bytes` with all that its programs read again."""

    name: str
    bytes: float
    l1_bytes: float = 0.0

    def seconds(self, bandwidth: float, launch_s: float) -> float:
        return launch_s + max(self.bytes / bandwidth, self.l1_bytes / L1_BYTES_S)


class CountedKernel:
    """A kernel of Triton that computes nothing and is counted."""

    def __init__(self, name: str, launches: list[Launch], context: int) -> None:
        self._name, self._launches, self._context = name, launches, context

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*args: Any, **options: Any) -> None:
            if self._name == "decode_rows":  # a row of the embedding
                args = args[2:3]
            tensors = {id(x): x for x in tree_leaves(args) if isinstance(x, Tensor)}.values()
            sizes = [self._bytes(x) for x in tensors if x.dtype != torch.int32 or x.dim() == 2]
            again = 0.0
            if "ROWS" in options or "WORDS" in options:  # a product: each program reads all of x
                parts = 2 if self._name == "gated_products" else 1
                inputs = [x for x in args[:2] if isinstance(x, Tensor)]
                again = parts * grid[0] * sum(x.nbytes for x in inputs)
            self._launches.append(Launch(self._name, sum(sizes), sum(sizes) + again))

        return launch

    def _bytes(self, x: Tensor) -> float:
        """Of a cache the context, or the token that is written."""
        if x.dim() != 4 or x.dtype == torch.float32:
            return x.nbytes
        tokens = self._context if self._name == "attend_tiles" else 1
        return tokens * x.shape[1] * x.shape[3] * x.element_size()


def counted_step(name: str, context: int) -> list[Launch]:
    """The launches of a captured decode step of one sequence."""
    launches: list[Launch] = []
    with pytest.MonkeyPatch.context() as patch, FakeGpu() as gpu:
        capture = FakeCapture(gpu, use_fake_triton(patch))
        for file_name, kernels in KERNELS.items():
            for kernel in kernels:
                module = sys.modules[f"mrs.kernels.triton.{file_name}"]
                setattr(module, kernel, CountedKernel(kernel, launches, context))
        patch.setattr(fake_gpu._Operations, "_count", counter(launches))
        patch.setattr(engine_builder, "CudaCapture", lambda device: capture)
        engine = make_engine(llama(name), context_tokens=context + 64, planned_tokens=context + 64)
        asked = Asked.of(engine, range(1, context), GREEDY)
        for _ in range(2):
            asked.advance()
        captured = capture.captured[0]
        assert captured.to_host == captured.from_host == []
        launches.clear()
        asked.advance()
    return launches


def counter(launches: list[Launch]) -> Callable[..., None]:
    """In place of `_Operations._count`."""

    def count(gpu: object, name: str, devices: object, leaves: Sequence[Any]) -> None:
        if not starts_kernel(name, leaves):
            return
        operation = name.split(".")[1]
        tensors = [x for x in leaves if isinstance(x, Tensor)]
        some = tensors[1:] if operation == "index" else tensors  # of a table, some rows are read
        launches.append(Launch(operation, sum(x.nbytes for x in some)))

    return count


def llama(name: str) -> Decoder:
    family = families()["llama"]
    spec = family.read(Config({**family.defaults, **LLAMA_8B}, "8B"))
    matrices: dict[str, Matrix] = {}
    vectors: dict[str, Tensor] = {}
    for parameter in list_parameters(spec, {**SAFETENSORS, **family.safetensors}):
        if parameter.role in ("dense", "vector"):
            vectors[parameter.name] = torch.ones(parameter.shape, device=GPU)
        else:
            matrices[parameter.name] = matrix(name, parameter)
    weights = ModelWeights(matrices, vectors)
    return Decoder(spec, weights, [GPU] * LAYERS, torch.bfloat16, torch.bfloat16)


def matrix(name: str, parameter: Parameter) -> Matrix:
    """A matrix in bf16, in a format of blocks, or in that of llama.cpp's mixture Q4_K_M."""
    if name == "BF16":
        return DenseMatrix(torch.empty(parameter.shape, dtype=torch.bfloat16, device=GPU))
    if name == "Q4_K_M":
        name = "Q6_K" if has_six_bits(parameter) else "Q4_K"
    return PlaneMatrix(PLANE_LAYOUTS[name], *parameter.shape, GPU)


def has_six_bits(parameter: Parameter) -> bool:
    """The output head, and values and down projections of half of the layers."""
    layer = parameter.layer
    if layer is None:
        return "head" in parameter.name
    is_chosen = parameter.name.endswith(("mixer.v.weight", "ffn.down.weight"))
    more = layer < LAYERS // 8 or layer >= 7 * LAYERS // 8 or (layer - LAYERS // 8) % 3 == 2
    return is_chosen and more


def report(name: str, launches: Sequence[Launch], bandwidth: float, launch_s: float) -> float:
    """Print a table of the launches; returns the share of the time that memory alone needs."""
    print(f"\n{name}\nkernel              count  MB read   MB L1  µs each  µs of memory  launches")
    for kernel in dict.fromkeys(launch.name for launch in launches):
        some = [launch for launch in launches if launch.name == kernel]
        print_row(kernel, some, bandwidth, launch_s)
    total = sum(launch.seconds(bandwidth, launch_s) for launch in launches)
    least = sum(launch.bytes for launch in launches) / bandwidth
    print(
        f"{len(launches)} launches, {total * 1e6:.0f} µs, memory alone {least * 1e6:.0f} µs:"
        f" {least / total:.1%}; {1 / total:.0f} tokens a second"
    )
    return least / total


def print_row(kernel: str, launches: Sequence[Launch], bandwidth: float, launch_s: float) -> None:
    count = len(launches)
    read, l1 = (sum(getattr(each, n) for each in launches) / count for n in ("bytes", "l1_bytes"))
    time = sum(launch.seconds(bandwidth, launch_s) for launch in launches) / count
    print(
        f"{kernel:18} {count:6} {read / 1e6:8.2f} {l1 / 1e6:7.1f} {time * 1e6:8.2f}"
        f" {read / bandwidth * 1e6:13.2f} {count * launch_s * 1e6:9.0f}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tb-s", type=float, default=4.8)
    parser.add_argument("--launch-us", type=float, default=1.3)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--formats", nargs="+", default=["BF16", "Q4_K_M"])
    wanted = parser.parse_args(arguments)
    shares = [
        report(name, counted_step(name, wanted.context), wanted.tb_s * 1e12, wanted.launch_us / 1e6)
        for name in wanted.formats
    ]
    return 0 if min(shares) >= 0.8 else 1


if __name__ == "__main__":
    sys.exit(main())
