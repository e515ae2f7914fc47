"""A test of the decode blocks on a GPU, run before they are used."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from mrs.kernels.norms import rms_norm
from mrs.kernels.paged import AttentionBatch, PagedKV
from mrs.kernels.rotate import rotate
from mrs.kernels.triton.attention_check import LARGEST_ERROR, has_triton_attention
from mrs.kernels.triton.decode_blocks import (
    AttentionBlock,
    GpuWeight,
    HeadShape,
    MlpBlock,
    RmsNorm,
)
from mrs.kernels.triton.expert_blocks import ExpertMatrices, GroupedExperts
from mrs.kernels.triton.paged_attention import TritonAttention
from mrs.kernels.triton.self_test import is_right, worst_of

_HIDDEN, _DIM = 128, 32


@cache
def has_decode_blocks(device: torch.device) -> bool:
    """Whether the blocks run on an NVIDIA GPU and are right there; warns if they are wrong."""
    if not has_triton_attention(device):
        return False
    return is_right(device, _largest_error, LARGEST_ERROR, "decode steps are not fused")


def _largest_error(device: torch.device) -> float:
    return worst_of((decode_error(device), expert_error(device)))


def decode_error(device: torch.device) -> float:
    """The relative error of a layer's two blocks for two tokens, compared with torch."""
    generator = torch.Generator().manual_seed(0)

    def random(*size: int) -> Tensor:
        return torch.randn(size, generator=generator).bfloat16().to(device)

    norm = RmsNorm(random(_HIDDEN).float(), 1e-5)
    q, k, v, o, gate, up, down = (random(_HIDDEN, _HIDDEN) / _HIDDEN**0.5 for _ in range(7))
    heads = _HIDDEN // _DIM
    shape = HeadShape(heads, heads, _DIM, interleaved=False)
    weights = [GpuWeight.of(each) for each in (q, k, v)]
    attention = AttentionBlock(norm, weights, GpuWeight.of(o), shape, scale=_DIM**-0.5)
    mlp = MlpBlock(norm, GpuWeight.of(gate), GpuWeight.of(up), GpuWeight.of(down), "silu")
    x, angles = random(2, _HIDDEN), random(2, _DIM // 2).float()
    cos_sin = angles.cos(), angles.sin()
    found = mlp(attention(x, cos_sin, *_cache(heads, device)))

    kv, batch = _cache(heads, device)
    parts = [rms_norm(x, norm.weight, norm.eps) @ each.T for each in (q, k, v)]
    split = [part.view(2, heads, _DIM) for part in parts]
    rotated = [rotate(part, *cos_sin) for part in split[:2]]
    backend = TritonAttention()
    backend.write(kv, batch, rotated[1], split[2])
    x = x + backend.attend(rotated[0], kv, batch, scale=_DIM**-0.5) @ o.T
    inner = rms_norm(x, norm.weight, norm.eps)
    expected = x + (torch.nn.functional.silu(inner @ gate.T) * (inner @ up.T)) @ down.T
    return float((found - expected).float().norm() / expected.float().norm())


def expert_error(device: torch.device) -> float:
    """The relative error of a mixture of three experts for two tokens, compared with torch."""
    generator = torch.Generator().manual_seed(0)

    def random(*size: int) -> Tensor:
        return torch.randn(size, generator=generator).bfloat16().to(device)

    parts = [[random(_DIM, _DIM) / _DIM**0.5 for _ in range(3)] for _ in range(3)]
    gate, up, down = (ExpertMatrices.of(each, [None] * 3) for each in parts)
    assert gate is not None
    assert up is not None
    assert down is not None
    x, weights = random(2, _DIM), random(2, 2).float()
    indices = torch.tensor([[2, 0], [1, 2]], device=device)
    found = GroupedExperts(gate, up, down, "silu", 0.0)(x, weights, indices)
    gates, ups, downs = (torch.stack(each) for each in parts)
    inner = torch.nn.functional.silu(torch.einsum("nd,erd->ner", x, gates))
    outs = torch.einsum("ner,ehr->neh", inner * torch.einsum("nd,erd->ner", x, ups), downs)
    chosen = outs.gather(1, indices[:, :, None].expand(-1, -1, _DIM)).float()
    expected = (chosen * weights[:, :, None]).sum(1)
    return float((found.float() - expected).norm() / expected.norm())


def _cache(heads: int, device: torch.device) -> tuple[PagedKV, AttentionBatch]:
    """An empty cache, and two sequences whose first tokens go to its blocks 1 and 0."""
    kv = PagedKV(heads, _DIM, _DIM, block_tokens=16, dtype=torch.bfloat16, device=device)
    kv.resize(2)
    starts, lengths = torch.tensor([[0, 1, 2], [1, 1, 0]], dtype=torch.int32)
    tables = torch.tensor([[1], [0]], dtype=torch.int32, device=device)
    slots = torch.tensor([16, 0], device=device)
    return kv, AttentionBatch(starts, lengths[:2], tables, slots)
