"""Decode ggml's IQ blocks, whose codes index fixed tables (grids) of 4 or 8 values each.

The grids come from the gguf package, which is imported when one is first needed. The signs of
eight values are a byte, or seven bits whose parity is the eighth sign. Block layouts: ggml's
`ggml-common.h`.
"""

from __future__ import annotations

from functools import cache

import torch

from mrs.quantization.gguf.bits import fields, half, planes, typed

_IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_IQ1_SHIFT = 0.125


@cache
def _grid(name: str, device: torch.device) -> torch.Tensor:
    """The grid of a type: (entries, 4 or 8), float32."""
    import gguf.quants

    table = getattr(gguf.quants, name)
    table.init_grid()
    return torch.tensor(table.grid, device=device).flatten(0, 2)


def _looked_up(name: str, index: torch.Tensor) -> torch.Tensor:
    """Concatenated grid entries: (N, n) -> (N, n * 4 or 8)."""
    return _grid(name, index.device)[index.long()].flatten(1)


def _signs(bits: torch.Tensor) -> torch.Tensor:
    """Sign bytes, lowest bit first, as factors 1 and -1: (N, n) -> (N, n * 8)."""
    return 1 - 2 * fields(bits, 8, 1).float()


def _with_parity(bits: torch.Tensor) -> torch.Tensor:
    """Seven sign bits, with the eighth bit set such that the number of set bits is even."""
    folded = bits ^ (bits >> 4)
    folded = folded ^ (folded >> 2)
    return bits | (((folded ^ (folded >> 1)) & 1) << 7)


def _repeated(scales: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Scales (N, S), each repeated for its values: (N, n)."""
    return scales.repeat_interleave(values.shape[1] // scales.shape[1], 1)


def _times(scales: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return _repeated(scales, values) * values


def _index(low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    """Grid indices from their low bytes and their high bits."""
    return low.short() | (high.short() << 8)


def decode_iq2_xxs(blocks: torch.Tensor) -> torch.Tensor:
    words = typed(blocks[:, 2:], torch.int32)  # (N, 16): four indices, then signs and a scale
    index, packed = words[:, 0::2].contiguous().view(torch.uint8), words[:, 1::2]
    scales = half(blocks[:, :2]) * (0.5 + ((packed >> 28) & 15).float()) * 0.25
    signs = _signs(_with_parity(fields(packed, 4, 7)))
    return _times(scales, _looked_up("IQ2_XXS", index)) * signs


def decode_iq2_xs(blocks: torch.Tensor) -> torch.Tensor:
    codes = typed(blocks[:, 2:66], torch.int16).int()
    scales = half(blocks[:, :2]) * (0.5 + fields(blocks[:, 66:], 2, 4).float()) * 0.25
    signs = _signs(_with_parity((codes >> 9) & 127))
    return _times(scales, _looked_up("IQ2_XS", codes & 511)) * signs


def decode_iq2_s(blocks: torch.Tensor) -> torch.Tensor:
    index = _index(blocks[:, 2:34], fields(blocks[:, 66:74], 4, 2))
    scales = half(blocks[:, :2]) * (0.5 + fields(blocks[:, 74:], 2, 4).float()) * 0.25
    return _times(scales, _looked_up("IQ2_S", index)) * _signs(blocks[:, 34:66])


def decode_iq3_xxs(blocks: torch.Tensor) -> torch.Tensor:
    packed = typed(blocks[:, 66:], torch.int32)  # (N, 8): four times seven signs, and a scale
    scales = half(blocks[:, :2]) * (0.5 + ((packed >> 28) & 15).float()) * 0.5
    signs = _signs(_with_parity(fields(packed, 4, 7)))
    return _times(scales, _looked_up("IQ3_XXS", blocks[:, 2:66])) * signs


def decode_iq3_s(blocks: torch.Tensor) -> torch.Tensor:
    index = _index(blocks[:, 2:66], fields(blocks[:, 66:74], 8, 1))
    scales = half(blocks[:, :2]) * (1 + 2 * fields(blocks[:, 106:], 2, 4)).float()
    return _times(scales, _looked_up("IQ3_S", index)) * _signs(blocks[:, 74:106])


def _shifted(grid: torch.Tensor, negative: torch.Tensor) -> torch.Tensor:
    return grid + _repeated(torch.where(negative, -_IQ1_SHIFT, _IQ1_SHIFT), grid)


def decode_iq1_s(blocks: torch.Tensor) -> torch.Tensor:
    high = typed(
        blocks[:, 34:], torch.int16
    ).int()  # (N, 8): four times three bits, a scale, a sign
    scales = half(blocks[:, :2]) * (2 * ((high >> 12) & 7) + 1).float()
    grid = _looked_up("IQ1_S", _index(blocks[:, 2:34], fields(high, 4, 3)))
    return _times(scales, _shifted(grid, (high & 0x8000) != 0))


def decode_iq1_m(blocks: torch.Tensor) -> torch.Tensor:
    words = typed(blocks[:, 48:], torch.int16).int()  # (N, 4): four times three bits, and a nibble
    nibbles = ((words >> 12) & 15) << torch.arange(0, 16, 4, device=words.device)
    d = nibbles.sum(1, keepdim=True).short().view(torch.float16).float()
    scales = d * (2 * fields(words, 4, 3) + 1).float()
    high = fields(blocks[:, 32:48], 2, 4)
    grid = _looked_up("IQ1_M", _index(blocks[:, :32], high & 7))
    return _times(scales, _shifted(grid, (high & 8) != 0))


def _iq4_values(codes: torch.Tensor) -> torch.Tensor:
    table = torch.tensor(_IQ4_VALUES, device=codes.device, dtype=torch.float32)
    return table[codes.long()]


def decode_iq4_nl(blocks: torch.Tensor) -> torch.Tensor:
    return half(blocks[:, :2]) * _iq4_values(planes(blocks[:, 2:], 16, 4))


def decode_iq4_xs(blocks: torch.Tensor) -> torch.Tensor:
    high = fields(typed(blocks[:, 2:4], torch.int16), 8, 2)
    scales = fields(blocks[:, 4:8], 2, 4) | (high << 4)
    values = _iq4_values(planes(blocks[:, 8:], 16, 4))
    return _times(half(blocks[:, :2]) * (scales.float() - 32), values)


DECODERS = {
    "IQ2_XXS": decode_iq2_xxs,
    "IQ2_XS": decode_iq2_xs,
    "IQ2_S": decode_iq2_s,
    "IQ3_XXS": decode_iq3_xxs,
    "IQ3_S": decode_iq3_s,
    "IQ1_S": decode_iq1_s,
    "IQ1_M": decode_iq1_m,
    "IQ4_NL": decode_iq4_nl,
    "IQ4_XS": decode_iq4_xs,
}
