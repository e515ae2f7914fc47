"""Attention over a paged cache: one contract, and who computes it on which device."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from mrs.kernels import steps
from mrs.kernels.attention import attend_with_torch
from mrs.kernels.library import NativeLibrary, native_library
from mrs.kernels.paged import AttentionBatch, PagedKV
from mrs.sizes.latent import heads_at_once


class AttentionBackend(Protocol):
    """Writes keys and values to a layer's cache, and attends to them."""

    def write(self, cache: PagedKV, batch: AttentionBatch, k: Tensor, v: Tensor | None) -> None:
        """Write k (N, KV, D) and v (N, KV, Dv), None where values are a part of the keys."""

    def attend(
        self,
        q: Tensor,
        cache: PagedKV,
        batch: AttentionBatch,
        *,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Causal attention of q (N, H, D), in its type, to (N, H * Dv); as `attention.attend`.

        The keys of the new tokens have been written.
        """


class NativeAttention:
    """The native library: one call for all sequences."""

    def __init__(self, library: NativeLibrary) -> None:
        self.library = library

    def write(self, cache: PagedKV, batch: AttentionBatch, k: Tensor, v: Tensor | None) -> None:
        assert cache.native is not None
        steps.write_kv(self.library, cache.native, batch.native, k, v)

    def attend(
        self,
        q: Tensor,
        cache: PagedKV,
        batch: AttentionBatch,
        *,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        assert cache.native is not None
        return steps.attend(
            self.library,
            q,
            cache.native,
            batch.native,
            cache.keys.shape[1],
            scale=scale,
            window=window,
            softcap=softcap,
            sinks=sinks,
        )


class TorchAttention:
    """torch's attention over a copy of each sequence's keys and values, one after another."""

    def write(self, cache: PagedKV, batch: AttentionBatch, k: Tensor, v: Tensor | None) -> None:
        cache.write(batch.slot_mapping, (k,) if v is None else (k, v))

    def attend(
        self,
        q: Tensor,
        cache: PagedKV,
        batch: AttentionBatch,
        *,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        tables = batch.tables(cache.block_tokens)
        outs: list[Tensor] = []
        for (rows, context), table in zip(batch.queries, tables, strict=True):
            some, ends = q[rows], batch.attention_ends
            first = 0 if window is None else max(0, context - len(some) - window + 1)
            k, *rest = cache.read(table, first, context)
            v = rest[0] if rest else k[..., : cache.value_dim]
            parts = [
                attend_with_torch(
                    part,
                    k,
                    v,
                    scale=scale,
                    window=window,
                    softcap=softcap,
                    sinks=sinks,
                    attention_ends=None if ends is None else ends[rows] - first,
                )
                for part in _some_heads(some, k, sinks is not None)
            ]
            outs.append(parts[0] if len(parts) == 1 else torch.cat(parts, dim=1))
        return outs[0] if len(outs) == 1 else torch.cat(outs)


def attention_backend(cache: PagedKV) -> AttentionBackend:
    """Who attends over such a cache: the native library on a CPU, where it takes the sizes."""
    library = native_library() if cache.device.type == "cpu" else None
    if library is not None and steps.can_attend(cache.keys, cache.values):
        return NativeAttention(library)
    return TorchAttention()


def _some_heads(q: Tensor, k: Tensor, has_sinks: bool) -> tuple[Tensor, ...]:
    """q (T, H, D) in parts of some heads, where all share k (1, S, D)."""
    if k.shape[0] > 1 or has_sinks:
        return (q,)
    return torch.split(q, heads_at_once(q.shape[0], k.shape[1]), dim=1)
