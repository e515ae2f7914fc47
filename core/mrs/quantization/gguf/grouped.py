"""Groups of weights with float32 scales: integers with a minimum (INT), 8-bit floats (FP8),
and indices in the table of bitsandbytes' nf4 (NF4).

| format   | block                                             | value                  |
| -------- | ------------------------------------------------- | ---------------------- |
| `INTb_n` | float32 scale, float32 minimum, n codes of b bits | scale * code + minimum |
| `FP8_n`  | float32 scale, n values of type F8_E4M3           | scale * value          |
| `NF4_n`  | float32 scale, n indices of 4 bits                | scale * table[index]   |

Each 32 codes are stored together. Codes 0-15 of 4 bits are the low nibbles of 16 bytes, codes 16-31
the high nibbles. Codes of 2 bits are four runs of 8 bytes; their third bits, if they have any, are
eight runs of 4 bytes. Codes of 8 bits are signed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from mrs.formats import GROUP_SIZES, INT_BITS
from mrs.quantization.gguf.bits import bytes_of, pack_planes, planes, typed

_UNIT = 32
#: The values of nf4, which bitsandbytes writes to each file.
NF4_VALUES = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
    0.7229568362236023, 1.0,
)  # fmt: skip


def int_codes(packed: torch.Tensor, bits: int) -> torch.Tensor:
    """Codes of 32 weights each, uint8 (N, 4 * bits) -> (N, 32); signed if `bits` is 8."""
    if bits == 8:
        return packed.view(torch.int8)
    if bits == 4:
        return planes(packed, 16, 4)
    codes = planes(packed[:, :8], 8, 2)
    return codes if bits == 2 else codes | planes(packed[:, 8:], 4, 1) << 2


def pack_int_codes(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """The inverse: codes (N, 32), uint8, or int8 if `bits` is 8 -> uint8 (N, 4 * bits)."""
    if bits == 8:
        return codes.contiguous().view(torch.uint8)
    if bits == 4:
        return pack_planes(codes, 16, 4)
    low = pack_planes(codes & 3, 8, 2)
    return low if bits == 2 else torch.cat((low, pack_planes(codes >> 2, 4, 1)), 1)


def decode_int(blocks: torch.Tensor, bits: int) -> torch.Tensor:
    head = typed(blocks[:, :8], torch.float32)
    packed = blocks[:, 8:].reshape(-1, 4 * bits)
    values = int_codes(packed, bits).reshape(len(blocks), -1).float()
    return values.mul_(head[:, :1]).add_(head[:, 1:])


def decode_fp8(blocks: torch.Tensor) -> torch.Tensor:
    values = typed(blocks[:, 4:], torch.float8_e4m3fn).float()
    return values.mul_(typed(blocks[:, :4], torch.float32))


def decode_nf4(blocks: torch.Tensor) -> torch.Tensor:
    indices = int_codes(blocks[:, 4:].reshape(-1, 16), 4).reshape(len(blocks), -1)
    values = torch.tensor(NF4_VALUES, device=blocks.device)[indices.int()]
    return values.mul_(typed(blocks[:, :4], torch.float32))


def int_blocks(
    codes: torch.Tensor, scales: torch.Tensor, minima: torch.Tensor, bits: int
) -> torch.Tensor:
    """Blocks of codes (N, n) with scales and minima (N,), float32 -> uint8 (N, block_bytes)."""
    packed = pack_int_codes(codes.reshape(-1, _UNIT), bits).reshape(len(codes), -1)
    return torch.cat((bytes_of(torch.stack((scales, minima), 1)), packed), 1)


def fp8_blocks(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Blocks of codes uint8 (N, n) with scales (N,), float32 -> uint8 (N, block_bytes)."""
    return torch.cat((bytes_of(scales.view(-1, 1)), codes), 1)


def nf4_blocks(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Blocks of indices uint8 (N, n) with scales (N,), float32 -> uint8 (N, block_bytes)."""
    packed = pack_int_codes(codes.reshape(-1, _UNIT), 4).reshape(len(codes), -1)
    return torch.cat((bytes_of(scales.view(-1, 1)), packed), 1)


DECODERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    **{f"INT{bits}_{n}": partial(decode_int, bits=bits) for bits in INT_BITS for n in GROUP_SIZES},
    **dict.fromkeys((f"FP8_{n}" for n in GROUP_SIZES), decode_fp8),
    **dict.fromkeys((f"NF4_{n}" for n in GROUP_SIZES), decode_nf4),
}
