"""Softmax attention with grouped heads: of tokens to tokens, and of tokens to images."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from mrs.kernels.attention_options import AttentionOptions
from mrs.kernels.cpu import elementwise
from mrs.kernels.workspace.attention import WINDOW_QUERIES


def attend_with_torch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    options: AttentionOptions,
    attention_ends: Tensor | None = None,
) -> Tensor:
    """Causal attention of the last T tokens over all S tokens, in q's dtype.

    q is (T, H, D); k is (KV, S, D) and v (KV, S, Dv) with H a multiple of KV; the queries are the
    last T of the S positions. `attention_ends` (T,) is the last position that each query attends
    to; None means its own. Returns (T, H * Dv).
    """
    mask = _mask(q.shape[0], k.shape[1], options.window, attention_ends, q.device)
    return _attend(q.to(k.dtype), k, v, mask, options).to(q.dtype)


def attend_to_all(q: Tensor, k: Tensor, v: Tensor, options: AttentionOptions) -> Tensor:
    """Attention of T queries to all S keys, in q's dtype; `options` have no window.

    q is (T, H, D); k and v are (KV, S, D) with H a multiple of KV. Returns (T, H * D).
    """
    library = elementwise.library_for(q)
    if library and elementwise.can_attend(k, v):
        return elementwise.attend_to_all(library, q, k, v, options)
    return _attend(q.to(k.dtype), k, v, None, options).to(q.dtype)


def attend_both_ways(q: Tensor, k: Tensor, v: Tensor, options: AttentionOptions) -> Tensor:
    """Attention of the T tokens of a whole sequence to each other, in q's dtype.

    q is (T, H, D), k and v are (T, KV, D). With a `window`, tokens attend to those that are less
    than `window` positions away; WINDOW_QUERIES of them at a time. Returns (T, H * D).
    """
    k, v = k.transpose(0, 1), v.transpose(0, 1)
    tokens, window = len(q), options.window
    if window is None or tokens <= window:
        return attend_to_all(q, k, v, options.without_window)
    outs = []
    for first in range(0, tokens, WINDOW_QUERIES):
        end = min(first + WINDOW_QUERIES, tokens)
        start, stop = max(0, first - window + 1), min(tokens, end + window - 1)
        query = torch.arange(first, end, device=q.device)[:, None]
        key = torch.arange(start, stop, device=q.device)[None, :]
        mask = (query - key).abs() < window
        near = slice(start, stop)
        outs.append(_attend(q[first:end], k[:, near], v[:, near], mask, options))
    return torch.cat(outs)


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    options: AttentionOptions,
) -> Tensor:
    tokens, heads, _ = q.shape
    kv_heads, keys, _ = k.shape
    group = heads // kv_heads
    # Fold the queries of a group, which share keys, into one axis: so no key is repeated.
    grouped = q.view(tokens, kv_heads, group, -1).permute(1, 2, 0, 3)  # (KV, G, T, D)
    if options.softcap is None and options.sinks is None:
        if mask is not None:
            mask = mask.expand(group, tokens, keys).reshape(group * tokens, keys)
        folded = grouped.reshape(1, kv_heads, group * tokens, -1)
        size, padding = v.shape[-1], k.shape[-1] - v.shape[-1]
        if padding and kv_heads > 1:  # torch makes all scores at once of values of another size
            v = F.pad(v, (0, padding))
        out = F.scaled_dot_product_attention(
            folded, k.unsqueeze(0), v.unsqueeze(0), attn_mask=mask, scale=options.scale
        ).view(kv_heads, group, tokens, -1)[..., :size]
    else:
        out = _attend_explicitly(grouped, k, v, mask, options)
    return out.permute(2, 0, 1, 3).reshape(tokens, -1)


def _mask(
    tokens: int,
    keys: int,
    window: int | None,
    attention_ends: Tensor | None,
    device: torch.device,
) -> Tensor | None:
    """(T, S), True if a query attends to a key; None if every query attends to every key."""
    if tokens == 1 and (window is None or keys <= window):
        return None
    query = torch.arange(keys - tokens, keys, device=device)[:, None]
    key = torch.arange(keys, device=device)[None, :]
    mask = key <= (query if attention_ends is None else attention_ends.to(device)[:, None])
    return mask if window is None else mask & (key > query - window)


def _attend_explicitly(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    options: AttentionOptions,
) -> Tensor:
    """Attention with options that torch's fused kernel lacks.

    One key head at a time bounds the memory of the scores.
    """
    softcap, sinks = options.softcap, options.sinks
    if sinks is not None:
        sinks = sinks.view(*q.shape[:2], 1, 1)
    outputs = []
    for head in range(k.shape[0]):
        scores = (q[head] @ k[head].T).float() * options.scale  # (G, T, S)
        if softcap is not None:
            scores = torch.tanh(scores / softcap) * softcap
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        if sinks is not None:
            sink = sinks[head].expand(*scores.shape[:2], 1).float()
            probabilities = torch.cat((scores, sink), dim=-1).softmax(-1)[..., :-1]
        else:
            probabilities = scores.softmax(-1)
        outputs.append(probabilities.to(v.dtype) @ v[head])
    return torch.stack(outputs)  # (KV, G, T, Dv)
