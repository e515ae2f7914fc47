"""What an NVIDIA GPU needs in addition to tensors, against what plans assume.

    python tests/bench/cuda_memory.py [--layers 4] [--rows 16]

Names are those of `mrs.plan.memory.overhead`. The model is a random Llama with the vocabulary and
the hidden size of Llama 3.2 1B.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from mrs.engine.engine import Engine
from mrs.plan.memory import overhead
from mrs.plan.memory.overhead import Estimate
from mrs.request import Sampling
from mrs.units import MIB
from support.engines import Asked, make_engine
from support.tiny_decoders import random_decoder

GPU = torch.device("cuda", 0)
PROMPT_TOKENS = 512


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--rows", type=int, default=16)
    wanted = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("no CUDA device")
        return 1
    print(f"{torch.cuda.get_device_name(GPU)}, torch {torch.__version__}")
    engine = make(wanted.layers, wanted.rows)
    reply(engine, 1, 1)  # loads kernels, without a decode step
    workspace = workspace_bytes()
    outside = outside_bytes()
    torch.cuda.reset_peak_memory_stats(GPU)
    before = torch.cuda.memory_allocated(GPU)
    reply(engine, wanted.rows, 1)
    allocated = torch.cuda.max_memory_allocated(GPU) - before
    gaps = torch.cuda.max_memory_reserved(GPU) - torch.cuda.max_memory_allocated(GPU)
    reserved = torch.cuda.memory_reserved(GPU)
    rows = 1
    while rows <= wanted.rows:
        reply(engine, rows, 4)
        rows *= 2
    graphs = torch.cuda.memory_reserved(GPU) - reserved + max(0, outside_bytes() - outside)
    number = 0 if engine._graphs is None else engine._graphs.num_captured
    print("MiB                measured   assumed: least, expected, most")
    show("CUDA_CONTEXT", outside, overhead.CUDA_CONTEXT)
    show("CUDA_WORKSPACE", workspace, overhead.CUDA_WORKSPACE)
    show("CUDA_GRAPHS", graphs, overhead.CUDA_GRAPHS)
    print(f"FRAGMENTATION    {gaps / max(allocated, 1):10.2f}   {overhead.FRAGMENTATION}")
    print(f"{number} graphs were captured")
    return 0 if number else 1


def make(layers: int, rows: int) -> Engine:
    config = {
        "model_type": "llama",
        "vocab_size": 128256,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": layers,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "tie_word_embeddings": True,
    }
    tokens = PROMPT_TOKENS + 64
    decoder = random_decoder(config, GPU, torch.bfloat16)
    limits = {"planned_seqs": rows, "max_seqs": rows}
    return make_engine(decoder, planned_tokens=tokens, context_tokens=tokens, **limits)


def reply(engine: Engine, count: int, new_tokens: int) -> None:
    """Replies of some sequences at once, with the default sampling."""
    sampling = Sampling(max_tokens=new_tokens)
    prompt = range(1, PROMPT_TOKENS)
    for each in [Asked.of(engine, prompt, sampling) for _ in range(count)]:
        each.finish()


def outside_bytes() -> int:
    """Used bytes of the GPU that are not torch's; on a GPU with other programs theirs, too."""
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info(GPU)
    return total - free - torch.cuda.memory_reserved(GPU)


def workspace_bytes() -> int:
    """What torch frees when it clears the workspaces of its matrix library."""
    before = torch.cuda.memory_allocated(GPU)
    torch._C._cuda_clearCublasWorkspaces()
    return before - torch.cuda.memory_allocated(GPU)


def show(name: str, measured_bytes: int, assumed: Estimate) -> None:
    least, expected, most = (each / MIB for each in assumed)
    print(f"{name:16} {measured_bytes / MIB:10.0f}   {least:.0f}, {expected:.0f}, {most:.0f}")


if __name__ == "__main__":
    sys.exit(main())
