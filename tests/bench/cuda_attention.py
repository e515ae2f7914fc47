"""Triton's attention on this machine's GPU: is it right, and how fast does it read the cache?

    python tests/bench/cuda_attention.py [--context 8192] [--sequences 1 8 32]

First every shape of the tests is compared with float64. Then decode steps of a layer with 32 heads
and 8 key heads of 128 values are timed; `GB/s` counts the keys and values alone.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "kernels")]
from attention_problems import SHAPES, Problem
from cuda_kernels import GPU, read_bandwidth

from mrs.kernels.attention_options import AttentionOptions
from mrs.kernels.cuda.timing import graph_s
from mrs.kernels.paged import AttentionBatch, PagedKV
from mrs.kernels.triton.paged_attention import TritonAttention

HEADS, KV_HEADS, DIM, BLOCK = 32, 8, 128, 64


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 8, 32])
    wanted = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA device")
        return 1
    wrong = 0
    for shape in SHAPES:
        problem = Problem(shape, GPU)
        error = problem.error()
        wrong += not error < problem.largest_error
        print(f"{'right' if error < problem.largest_error else 'WRONG'} {error:.1e} {shape}")
    bandwidth = read_bandwidth()
    print(f"read bandwidth {bandwidth / 1e9:.0f} GB/s")
    for sequences in wanted.sequences:
        time_decode(sequences, wanted.context, bandwidth)
    return 1 if wrong else 0


def time_decode(sequences: int, context: int, bandwidth: float) -> None:
    blocks = -(-context // BLOCK)
    kv = PagedKV(KV_HEADS, DIM, DIM, block_tokens=BLOCK, dtype=torch.bfloat16, device=GPU)
    kv.resize(sequences * blocks)
    for x in kv.tensors:
        x.normal_()
    batch = AttentionBatch(
        torch.arange(sequences + 1, dtype=torch.int32),
        torch.full((sequences,), context, dtype=torch.int32, device=GPU),
        torch.randperm(sequences * blocks, device=GPU).int().view(sequences, blocks),
        torch.empty(0, dtype=torch.int64, device=GPU),
    )
    q = torch.randn(sequences, HEADS, DIM, dtype=torch.bfloat16, device=GPU)
    backend = TritonAttention()
    options = AttentionOptions(0.1)
    seconds = graph_s(lambda: backend.attend(q, kv, batch, options))
    rate = kv.nbytes / seconds
    print(
        f"{sequences:4} sequences of {context}: {seconds * 1e6:8.1f} µs"
        f" {rate / 1e9:6.0f} GB/s {rate / bandwidth:5.0%}"
    )


if __name__ == "__main__":
    sys.exit(main())
