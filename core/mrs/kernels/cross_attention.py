"""Softmax attention of tokens to keys that are no tokens."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from mrs.kernels import steps


def attend_to_all(q: Tensor, k: Tensor, v: Tensor, *, scale: float) -> Tensor:
    """Attention of T queries to all S keys, in q's dtype.

    q is (T, H, D); k and v are (KV, S, D) with H a multiple of KV. Returns (T, H * D).
    """
    tokens, heads, dim = q.shape
    library = steps.library_for(q)
    if tokens == 1 and library and steps.can_attend(k, v):
        return steps.attend_one(library, q, k, v, scale)
    kv_heads = k.shape[0]
    # Queries of one group share keys: fold them into one axis and no key is ever repeated.
    grouped = q.to(k.dtype).view(tokens, kv_heads, heads // kv_heads, dim).permute(1, 2, 0, 3)
    folded = grouped.reshape(1, kv_heads, -1, dim)
    mixed = F.scaled_dot_product_attention(folded, k.unsqueeze(0), v.unsqueeze(0), scale=scale)
    mixed = mixed.view(kv_heads, heads // kv_heads, tokens, dim)
    return mixed.permute(2, 0, 1, 3).reshape(tokens, -1).to(q.dtype)
