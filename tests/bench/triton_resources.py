"""Registers, shared memory and spills of the kernels of a decode step, compiled for each GPU.

    PYTHONPATH=tests:tests/kernels python tests/bench/triton_resources.py
        [--formats BF16 Q4_K] [--tokens 1] [--capabilities 80 89 90 120]

Needs Triton, and no GPU. Of up to four tokens it compiles the layers of a decode step, of more the
product of a matrix. `warps` are those that a multiprocessor runs at once, as far as registers
and shared memory allow; 32 programs at most.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import pytest
from triton_for_gpus import decode_layer, experts, multiply

from mrs.kernels.triton.decode_blocks import MOST_TOKENS
from support.triton_compiler import CAPABILITIES, compile_for, resources_of

REGISTERS = 1 << 16
#: Shared memory of a multiprocessor for all of its programs, by capability.
SHARED_BYTES = {80: 164 << 10, 89: 100 << 10, 90: 228 << 10, 120: 100 << 10}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--formats", nargs="+", default=["BF16", "Q4_K"])
    parser.add_argument("--tokens", type=int, nargs="+", default=[1])
    parser.add_argument("--capabilities", type=int, nargs="+", default=list(CAPABILITIES))
    wanted = parser.parse_args(arguments)
    print("format tokens     sm kernel              registers  shared  spilled  warps", flush=True)
    for name in wanted.formats:
        for tokens in wanted.tokens:
            for capability in wanted.capabilities:
                with pytest.MonkeyPatch.context() as patch:
                    kernels = compile_for(capability, patch)
                    if tokens <= MOST_TOKENS:
                        decode_layer(name, tokens)
                        experts(name)
                    else:
                        multiply(name, tokens)
                for kernel in kernels:
                    print(
                        f"{name:6} {tokens:6} {capability:6} {row(kernel, capability)}", flush=True
                    )


def row(kernel: Any, capability: int) -> str:
    found, warps = resources_of(kernel), kernel.metadata.num_warps
    programs = min(
        32,
        REGISTERS // (32 * warps * -(-found.registers // 8) * 8),
        SHARED_BYTES[capability] // (found.shared_bytes + 1024),
    )
    return (
        f"{kernel.metadata.name:18} {found.registers:10} {found.shared_bytes:7}"
        f" {found.spilled_bytes:8} {warps * programs:6}"
    )


if __name__ == "__main__":
    main()
