"""A test of the decode blocks on a GPU, run before they are used."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import torch
from torch import Tensor

from mrs.kernels.attention_options import AttentionOptions
from mrs.kernels.norms import rms_norm
from mrs.kernels.paged import AttentionBatch, PagedKV
from mrs.kernels.rotate import rotate
from mrs.kernels.triton.attention_check import LARGEST_ERROR, has_triton_attention
from mrs.kernels.triton.bit_planes import PlaneLayout, decode_rows
from mrs.kernels.triton.decode_blocks import (
    MOST_TOKENS,
    AttentionBlock,
    GpuWeight,
    HeadShape,
    MlpBlock,
    RmsNorm,
)
from mrs.kernels.triton.expert_blocks import ExpertMatrices, GroupedExperts
from mrs.kernels.triton.paged_attention import TritonAttention
from mrs.kernels.triton.plane_matrix import PlaneMatrix
from mrs.kernels.triton.self_test import is_right, random_matrix, worst_of

#: Columns of the matrices. Of rows of 288 the kernels read fewer words together.
_WIDTHS = 256, 288
_DIM = 32


def hidden_size(layout: PlaneLayout | None) -> int:
    """The columns that make a kernel read as many words together as the layout says."""
    fitting = (w for w in _WIDTHS if layout is None or layout.for_columns(w) == layout)
    return next(fitting, _WIDTHS[0])


@cache
def has_decode_blocks(device: torch.device, layout: PlaneLayout | None) -> bool:
    """Whether a layer's blocks with weights of a layout, or floats without one, are right on an
    NVIDIA GPU; warns if they are wrong.
    """
    return _is_right(device, layout, decode_error)


@cache
def has_expert_blocks(device: torch.device, layout: PlaneLayout | None) -> bool:
    """As `has_decode_blocks`, for mixtures of experts."""
    return _is_right(device, layout, expert_error)


def _is_right(
    device: torch.device, layout: PlaneLayout | None, error_of: Callable[..., float]
) -> bool:
    error_on = partial(error_of, layout=layout)
    return has_triton_attention(device) and is_right(
        device, error_on, LARGEST_ERROR, "decode steps are not fused"
    )


def decode_error(device: torch.device, layout: PlaneLayout | None = None) -> float:
    """The largest relative error of a layer's two blocks, compared with torch: for all numbers of
    tokens that have kernels of their own.
    """
    return worst_of(_block_error(device, layout, tokens) for tokens in (1, 2, MOST_TOKENS))


def _block_error(device: torch.device, layout: PlaneLayout | None, tokens: int) -> float:
    chance, hidden = _Chance(device, layout), hidden_size(layout)
    norm = RmsNorm(chance.floats(hidden).float(), 1e-5)
    matrices = [chance.matrix(hidden) for _ in range(7)]
    q, k, v, o, gate, up, down = (GpuWeight.of(each) for each in matrices)
    heads = hidden // _DIM
    shape = HeadShape(heads, heads, _DIM, interleaved=False)
    options = AttentionOptions(_DIM**-0.5)
    attention = AttentionBlock(norm, (q, k, v), o, shape, options)
    mlp = MlpBlock(norm, gate, up, down, "silu")
    x, angles = chance.floats(tokens, hidden), chance.floats(tokens, _DIM // 2).float()
    cos_sin = angles.cos(), angles.sin()
    computed = mlp(attention(x, cos_sin, *_cache(heads, tokens, device)))

    kv, batch = _cache(heads, tokens, device)
    decoded = [_decoded(each) for each in matrices]
    parts = [rms_norm(x, norm.weight, norm.eps) @ each.T for each in decoded[:3]]
    split = [part.view(tokens, heads, _DIM) for part in parts]
    rotated = [rotate(part, *cos_sin) for part in split[:2]]
    backend = TritonAttention()
    backend.write(kv, batch, rotated[1], split[2])
    x = x + backend.attend(rotated[0], kv, batch, options) @ decoded[3].T
    inner = rms_norm(x, norm.weight, norm.eps)
    gates, ups = (inner @ each.T for each in decoded[4:6])
    expected = x + (torch.nn.functional.silu(gates) * ups) @ decoded[6].T
    return float((computed - expected).float().norm() / expected.float().norm())


def expert_error(device: torch.device, layout: PlaneLayout | None = None) -> float:
    """The relative error of a mixture of three experts for two tokens, compared with torch."""
    chance, hidden = _Chance(device, layout), hidden_size(layout)
    parts = [[chance.matrix(hidden) for _ in range(3)] for _ in range(3)]
    gate, up, down = (ExpertMatrices.of(each, [None] * 3) for each in parts)
    assert gate is not None
    assert up is not None
    assert down is not None
    x, weights = chance.floats(2, hidden), chance.floats(2, 2).float()
    indices = torch.tensor([[2, 0], [1, 2]], device=device)
    computed = GroupedExperts(gate, up, down, "silu", 0.0)(x, weights, indices)
    gates, ups, downs = (torch.stack([_decoded(each) for each in part]) for part in parts)
    inner = torch.nn.functional.silu(torch.einsum("nd,erd->ner", x, gates))
    outs = torch.einsum("ner,ehr->neh", inner * torch.einsum("nd,erd->ner", x, ups), downs)
    chosen = outs.gather(1, indices[:, :, None].expand(-1, -1, hidden)).float()
    expected = (chosen * weights[:, :, None]).sum(1)
    return float((computed.float() - expected).norm() / expected.norm())


class _Chance:
    """Random values; matrices are of a layout, or bf16 without one."""

    def __init__(self, device: torch.device, layout: PlaneLayout | None) -> None:
        self._device, self._layout = device, layout
        self._generator = torch.Generator().manual_seed(0)

    def floats(self, *size: int) -> Tensor:
        return torch.randn(size, generator=self._generator).bfloat16().to(self._device)

    def matrix(self, size: int) -> PlaneMatrix | Tensor:
        if self._layout is None:
            return self.floats(size, size).mul_(size**-0.5)
        return random_matrix(self._layout, size, size, self._device, self._generator)


def _decoded(matrix: PlaneMatrix | Tensor) -> Tensor:
    if isinstance(matrix, Tensor):
        return matrix
    ids = torch.arange(matrix.shape[0], device=matrix.device)
    return decode_rows(matrix.layout, matrix.planes, ids).bfloat16()


def _cache(heads: int, tokens: int, device: torch.device) -> tuple[PagedKV, AttentionBatch]:
    """An empty cache, and sequences whose first tokens go to its blocks, the last first."""
    kv = PagedKV(heads, _DIM, _DIM, block_tokens=16, dtype=torch.bfloat16, device=device)
    kv.resize(tokens)
    starts = torch.arange(tokens + 1, dtype=torch.int32)
    blocks = torch.arange(tokens, dtype=torch.int32, device=device).flip(0)
    lengths = torch.ones(tokens, dtype=torch.int32)
    slots = kv.block_tokens * blocks.long()
    return kv, AttentionBatch(starts, lengths, blocks[:, None], slots)
