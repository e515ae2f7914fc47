"""Let every allocation of the native library fail, one at a time; run by test_allocations.py.

Prints, for each piece of work, its name and how many allocations it makes.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable

import torch
from packed_blocks import random_blocks
from test_paged_attention import make_cache
from test_steps import batch_of
from torch import Tensor

from mrs.graph.layer_graph import native_graph
from mrs.graph.program import parts_of, program_of
from mrs.kernels.attention_backend import attention_backend
from mrs.kernels.attention_options import AttentionOptions
from mrs.kernels.cpu.library import native_library
from mrs.kernels.cpu.packed import PackedMatrix
from mrs.layers.empty.spec import NoMixer
from mrs.layers.layer import Layer
from mrs.layers.mlp.spec import Mlp
from mrs.layers.norm.spec import Norm
from mrs.model.native_program import NativeProgram, NativeRun, Weights

PRELOADED = ctypes.CDLL(None)
COLUMNS = 8192  # so many that three tokens are more than each thread packs for itself
ROWS = 256


def packed(name: str, rows: int = ROWS, columns: int = COLUMNS) -> PackedMatrix:
    matrix = PackedMatrix(name, rows, columns)
    matrix.fill(random_blocks(name, rows, columns))
    return matrix


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def works() -> dict[str, Callable[[], Tensor]]:
    library = native_library()
    assert library is not None
    few, many = normal(3, COLUMNS), normal(40, COLUMNS)
    matrices = [packed("Q4_K"), packed("Q8_0"), packed("BF16")]
    products = {
        f"{matrix.format_name} {x.shape[0]} {x.dtype}": lambda m=matrix, x=x: m.matmul(x)
        for matrix in matrices
        for x in (few, few.bfloat16(), many, many.bfloat16())
    }
    three = [packed("Q4_K"), packed("Q8_0"), packed("Q6_K", COLUMNS, ROWS)]
    graph = native_graph(Layer(NoMixer(), Mlp(ROWS), Norm(1e-5)), COLUMNS, lambda slot: True)
    ((operations, _),) = parts_of(graph)
    slots = dict(zip(("ffn.gate", "ffn.up", "ffn.down"), three, strict=True))
    weights = Weights(slots.__getitem__, lambda name: normal(COLUMNS))
    run = NativeRun([NativeProgram(library, program_of(operations, graph), weights)], [None])

    def half() -> Tensor:
        x = few.clone()
        run(x)
        return x

    return {
        **products,
        "feed-forward": half,
        "attention of one": attention(1),
        "attention of many": attention(30),
    }


def attention(tokens: int) -> Callable[[], Tensor]:
    """New tokens attend to themselves and those before them, 50 in all."""
    keys = normal(2, 50, 32)
    cache, places = make_cache([(keys, keys, tokens)], 64, torch.float32)
    q, batch = normal(tokens, 8, 32), batch_of(places, 64)
    return lambda: attention_backend(cache).attend(q, cache, batch, AttentionOptions(0.2))


def allocations(work: Callable[[], Tensor]) -> int:
    """How many `work` makes: as long as one fails, and only then, it raises MemoryError."""
    expected, count = work(), 0
    while True:
        PRELOADED.fail_allocation(count)
        try:
            result = work()
        except MemoryError:
            assert PRELOADED.allocation_failed()
            count += 1
            continue
        assert not PRELOADED.allocation_failed()
        PRELOADED.fail_allocation(-1)
        assert torch.equal(result, expected)
        return count


def peak_bytes() -> int:
    """Of one product; more, if what it follows was not given back."""
    library = native_library()
    library.functions.mrs_scratch_peak()
    packed("Q8_0").matmul(normal(3, COLUMNS))
    return library.functions.mrs_scratch_peak()


if __name__ == "__main__":
    torch.set_num_threads(2)
    before = peak_bytes()
    print(json.dumps({name: allocations(work) for name, work in works().items()}))
    assert peak_bytes() == before
