"""Attention over a paged KV cache: the interface, and its native and torch implementations."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from mrs.kernels.attention_options import AttentionOptions
from mrs.kernels.cpu import elementwise
from mrs.kernels.cpu.library import NativeLibrary, native_library
from mrs.kernels.flashinfer_attention import FlashInferAttention, has_flashinfer
from mrs.kernels.paged import AttentionBatch, PagedKV
from mrs.kernels.softmax_attention import attend_with_torch
from mrs.kernels.triton.attention_check import has_triton_attention
from mrs.kernels.triton.paged_attention import TritonAttention
from mrs.kernels.workspace.attention import heads_at_once


class AttentionBackend(Protocol):
    """Writes keys and values to a layer's cache, and computes attention over it."""

    def write(self, cache: PagedKV, batch: AttentionBatch, k: Tensor, v: Tensor | None) -> None:
        """Write k (N, KV, D) and v (N, KV, Dv); v is None if the values are part of the keys."""

    def attend(
        self,
        q: Tensor,
        cache: PagedKV,
        batch: AttentionBatch,
        options: AttentionOptions,
    ) -> Tensor:
        """Causal attention of q (N, H, D) to (N, H * Dv), in q's dtype.

        The keys of the new tokens must have been written.
        """


class NativeAttention:
    """The native library, which computes all sequences in one call."""

    def __init__(self, library: NativeLibrary) -> None:
        self.library = library

    def write(self, cache: PagedKV, batch: AttentionBatch, k: Tensor, v: Tensor | None) -> None:
        assert cache.native is not None
        elementwise.write_kv(self.library, cache.native, batch.native, k, v)

    def attend(
        self,
        q: Tensor,
        cache: PagedKV,
        batch: AttentionBatch,
        options: AttentionOptions,
    ) -> Tensor:
        assert cache.native is not None
        kv_heads = cache.keys.shape[1]
        return elementwise.attend(self.library, q, cache.native, batch.native, kv_heads, options)


class TorchAttention:
    """torch's attention, one sequence after another, over a copy of its keys and values."""

    def write(self, cache: PagedKV, batch: AttentionBatch, k: Tensor, v: Tensor | None) -> None:
        cache.write(batch.slot_mapping, (k,) if v is None else (k, v))

    def attend(
        self,
        q: Tensor,
        cache: PagedKV,
        batch: AttentionBatch,
        options: AttentionOptions,
    ) -> Tensor:
        tables = batch.tables(cache.block_tokens)
        outs: list[Tensor] = []
        for (rows, context), table in zip(batch.queries, tables, strict=True):
            queries, ends = q[rows], batch.attention_ends
            first = 0
            if options.window is not None:
                first = max(0, context - len(queries) - options.window + 1)
            own_ends = None if ends is None else ends[rows] - first
            # Tokens of a block attend to the same rests; those of others are computed in vain.
            blocks = torch.zeros(len(queries), dtype=torch.int64)
            if cache.codes:
                blocks = torch.arange(context - len(queries), context) // cache.block_tokens
            for block in sorted({*blocks.tolist()}):
                k, *rest = cache.read_floats(table, first, context, block)
                v = rest[0] if rest else k[..., : cache.value_dim]
                head_outs = [
                    attend_with_torch(heads, k, v, options, attention_ends=own_ends)
                    for heads in _split_heads(queries, k, options.sinks is not None)
                ]
                out = head_outs[0] if len(head_outs) == 1 else torch.cat(head_outs, dim=1)
                outs.append(out[blocks == block] if cache.codes else out)
        return outs[0] if len(outs) == 1 else torch.cat(outs)


def attention_backend(kv: PagedKV) -> AttentionBackend:
    """The backend for such a cache: native code on a CPU, Triton on an NVIDIA GPU, else torch.

    FlashInfer computes prompts there if it is installed.
    """
    if kv.device.type == "cuda" and has_triton_attention(kv.device):
        return FlashInferAttention() if has_flashinfer(kv.device) else TritonAttention()
    library = native_library() if kv.device.type == "cpu" else None
    if library is not None and (kv.codes or elementwise.can_attend(kv.keys, kv.values)):
        return NativeAttention(library)
    return TorchAttention()


def _split_heads(q: Tensor, k: Tensor, has_sinks: bool) -> tuple[Tensor, ...]:
    """q (T, H, D) split by heads to bound the scores' memory, if all heads share k (1, S, D)."""
    if k.shape[0] > 1 or has_sinks:
        return (q,)
    return torch.split(q, heads_at_once(q.shape[0], k.shape[1]), dim=1)
