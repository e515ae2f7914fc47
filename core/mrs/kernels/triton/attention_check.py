"""A test of the Triton attention on a GPU, run before it is used."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from mrs.kernels.attention_options import AttentionOptions
from mrs.kernels.paged import AttentionBatch, PagedKV, computable
from mrs.kernels.softmax_attention import attend_with_torch
from mrs.kernels.triton.paged_attention import SPLIT_KEYS, TritonAttention
from mrs.kernels.triton.self_test import is_right, triton_missing_reason

#: Relative; rounding to bf16 alone causes an error of 0.4 %.
LARGEST_ERROR = 2e-2


@cache
def has_triton_attention(device: torch.device) -> bool:
    """Whether the kernels run on an NVIDIA GPU and are right there; warns if they are wrong."""
    if triton_missing_reason(device) is not None:
        return False
    return is_right(device, attention_error, LARGEST_ERROR, "torch computes attention")


def attention_error(
    device: torch.device,
    attend: Callable[..., Tensor] | None = None,
    dtype: torch.dtype = torch.bfloat16,
) -> float:
    """The relative error of a decode step and a prompt of five tokens, compared with torch's.

    The step's keys are split, so that programs add up what others have stored. `attend` is the
    method of a backend, by default that of the Triton kernels; the cache has the type `dtype`.
    """
    generator = torch.Generator().manual_seed(0)

    def random(*size: int) -> Tensor:
        return torch.randn(size, generator=generator).bfloat16().to(device)

    kv = PagedKV(2, 64, 64, block_tokens=16, dtype=dtype, device=device)
    length = 2 * SPLIT_KEYS + 88
    blocks = -(-length // kv.block_tokens)
    kv.resize(2 * blocks)
    for x in kv.tensors:
        x.copy_(random(*x.shape))
    tables = torch.randperm(2 * blocks, generator=generator).view(2, blocks).int()
    starts, lengths = torch.tensor([[0, 1, 6], [length, 30, 0]], dtype=torch.int32)
    batch = AttentionBatch(starts, lengths[:2], tables.to(device), torch.empty(0))
    q, options = random(6, 8, 64), AttentionOptions(0.1)
    expected = []
    for (rows, context), table in zip(batch.queries, batch.block_tables, strict=True):
        keys, values = map(computable, kv.read(table, 0, context))
        expected.append(attend_with_torch(q[rows], keys, values, options))
    attended = (attend or TritonAttention().attend)(q, kv, batch, options)
    difference = attended - torch.cat(expected)
    return float(difference.float().norm() / torch.cat(expected).float().norm())
