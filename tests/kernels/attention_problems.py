"""Random problems of attention over a paged cache, and their solutions in float64."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mrs.kernels.attention_options import AttentionOptions
from mrs.kernels.paged import AttentionBatch, PagedKV
from mrs.kernels.triton.paged_attention import TritonAttention

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Shape:
    """`new` and `cached` are the tokens of each sequence."""

    heads: int
    kv_heads: int
    dim: int
    new: tuple[int, ...]
    cached: tuple[int, ...]
    value_dim: int | None = None
    window: int | None = None
    softcap: float | None = None
    has_sinks: bool = False
    dtype: torch.dtype = torch.float32
    block_tokens: int = 8
    has_ends: bool = False
    cache_dtype: torch.dtype | None = None


SHAPES = (
    Shape(4, 2, 64, (1, 1, 1), (0, 9, 70)),
    Shape(6, 1, 20, (5, 1, 30), (3, 40, 0)),
    Shape(3, 3, 80, (1, 17), (33, 16), softcap=20.0),
    Shape(8, 2, 96, (1, 9), (60, 50), window=16),
    Shape(8, 1, 128, (1, 3), (45, 2), has_sinks=True, window=24, block_tokens=16),
    Shape(2, 1, 256, (1, 5), (35, 4), dtype=torch.bfloat16),
    Shape(4, 2, 64, (1, 20), (77, 11), dtype=torch.float16, has_sinks=True),
    Shape(20, 1, 576, (1, 4), (37, 5), value_dim=512),
    Shape(4, 2, 64, (12, 1), (6, 8), has_ends=True),
    Shape(4, 2, 64, (12, 1), (30, 8), has_ends=True, window=16),
    Shape(4, 2, 80, (1, 9), (77, 11), cache_dtype=torch.float8_e4m3fn),
    Shape(8, 2, 128, (1, 4), (40, 5), has_sinks=True, window=24, cache_dtype=torch.float8_e4m3fn),
    Shape(4, 1, 576, (1, 4), (37, 5), value_dim=512, cache_dtype=torch.float8_e4m3fn),
)


class Problem:
    """Random queries and a cache whose blocks are in any order; other blocks are not finite."""

    def __init__(self, shape: Shape, device: torch.device = CPU) -> None:
        self.shape = shape
        self.device = device
        self.chance = torch.Generator().manual_seed(0)
        lengths = [n + c for n, c in zip(shape.new, shape.cached, strict=True)]
        size = shape.block_tokens
        counts = [-(-length // size) for length in lengths]
        dims = shape.dim, shape.value_dim or shape.dim
        self.cache = PagedKV(
            shape.kv_heads,
            *dims,
            block_tokens=size,
            dtype=shape.cache_dtype or shape.dtype,
            device=device,
            values_in_keys=shape.value_dim is not None,
        )
        self.cache.resize(sum(counts) + 2)
        for x in self.cache.tensors:
            x.copy_(torch.full((1,), float("nan")))
        order = torch.randperm(sum(counts) + 2, generator=self.chance).tolist()
        tables = [[order.pop() for _ in range(count)] for count in counts]
        self.keys = [self.cached(length, shape.kv_heads, dims[0]) for length in lengths]
        self.values = [self.cached(length, shape.kv_heads, dims[1]) for length in lengths]
        if shape.value_dim is not None:
            self.values = [k[..., : shape.value_dim] for k in self.keys]
        for table, k, v in zip(tables, self.keys, self.values, strict=True):
            slots = torch.tensor([table[i // size] * size + i % size for i in range(len(k))])
            slots = slots.to(device)
            self.cache.write(slots, (k,) if shape.value_dim is not None else (k, v))
        self.q = self.random(sum(shape.new), shape.heads, shape.dim)
        sinks = torch.randn(shape.heads, generator=self.chance).to(device)
        self.sinks = sinks if shape.has_sinks else None
        self.lengths = lengths
        self.batch = self._batch(tables)

    def random(self, *size: int) -> Tensor:
        return torch.randn(size, generator=self.chance).to(self.device, self.shape.dtype)

    def cached(self, *size: int) -> Tensor:
        """Random values that the cache's type has."""
        x = self.random(*size)
        return x if self.shape.cache_dtype is None else x.to(self.shape.cache_dtype).to(x.dtype)

    def _batch(self, tables: list[list[int]]) -> AttentionBatch:
        width = max(map(len, tables))
        starts = torch.tensor([0, *self.shape.new]).cumsum(0).int()
        return AttentionBatch(
            starts,
            torch.tensor(self.lengths, dtype=torch.int32),
            torch.tensor([t + [0] * (width - len(t)) for t in tables], dtype=torch.int32).to(
                self.device
            ),
            torch.empty(0, dtype=torch.int64, device=self.device),
            self._ends() if self.shape.has_ends else None,
        )

    def _ends(self) -> Tensor:
        """The first half of each sequence's new tokens attend to one another."""
        parts = []
        for new, cached in zip(self.shape.new, self.shape.cached, strict=True):
            last = torch.arange(cached, cached + new)
            last[: new // 2] = cached + max(new // 2 - 1, 0)
            parts.append(last)
        return torch.cat(parts)

    def attend(self) -> Tensor:
        return TritonAttention().attend(
            self.q,
            self.cache,
            self.batch,
            AttentionOptions(0.2, self.shape.window, self.shape.softcap, self.sinks),
        )

    def error(self) -> float:
        """Relative, of `attend`."""
        expected = self.expected()
        return float((self.attend().double() - expected).norm() / expected.norm())

    @property
    def largest_error(self) -> float:
        return 1e-5 if self.shape.dtype is torch.float32 else 2e-2

    def expected(self) -> Tensor:
        """Attention in float64, one query and head at a time."""
        outs, ends, row = [], self.batch.attention_ends, 0
        for (rows, context), k, v in zip(self.batch.queries, self.keys, self.values, strict=True):
            for at in range(context - (rows.stop - rows.start), context):
                last = at if ends is None else int(ends[row])
                first = 0 if self.shape.window is None else max(0, at - self.shape.window + 1)
                outs.append(self._one(row, k[first : last + 1], v[first : last + 1]))
                row += 1
        return torch.stack(outs)

    def _one(self, row: int, k: Tensor, v: Tensor) -> Tensor:
        group = self.shape.heads // self.shape.kv_heads
        k, v = (x.double().repeat_interleave(group, 1) for x in (k, v))
        scores = torch.einsum("hd,shd->hs", self.q[row].double(), k) * 0.2
        if self.shape.softcap is not None:
            scores = torch.tanh(scores / self.shape.softcap) * self.shape.softcap
        if self.sinks is not None:
            scores = torch.cat((scores, self.sinks.double()[:, None]), 1)
        weights = scores.softmax(-1)[:, : len(k)]
        return torch.einsum("hs,shd->hd", weights, v).flatten()
