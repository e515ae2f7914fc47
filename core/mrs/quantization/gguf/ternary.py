"""Decode ggml's ternary blocks TQ1_0 and TQ2_0: 256 values in {-1, 0, 1} and a float16 scale."""

from __future__ import annotations

import torch

from mrs.quantization.gguf.bits import half, planes


def _trits(packed: torch.Tensor, group: int, count: int) -> torch.Tensor:
    """`count` base-3 digits of each byte, the most significant first: (N, n) -> (N, n * count).

    A byte is round-up(256 * digits / 3**5), where `digits` is the number that the digits form.
    Multiplying it by 3**i modulo 256 drops the first i digits; times 3, the next digit is in the
    bits above the byte. Each group of `group` bytes yields all first digits, then all second ones.
    """
    powers = torch.tensor([3**i for i in range(count)], device=packed.device, dtype=torch.uint8)
    rest = packed.reshape(len(packed), -1, 1, group) * powers.view(1, 1, count, 1)
    return ((rest.short() * 3) >> 8).reshape(len(packed), -1)


def decode_tq1_0(blocks: torch.Tensor) -> torch.Tensor:
    digits = (
        _trits(blocks[:, :32], 32, 5),
        _trits(blocks[:, 32:48], 16, 5),
        _trits(blocks[:, 48:52], 4, 4),
    )
    return half(blocks[:, 52:54]) * (torch.cat(digits, 1) - 1).float()


def decode_tq2_0(blocks: torch.Tensor) -> torch.Tensor:
    return half(blocks[:, 64:66]) * (planes(blocks[:, :64], 32, 2).float() - 1)


DECODERS = {"TQ1_0": decode_tq1_0, "TQ2_0": decode_tq2_0}
