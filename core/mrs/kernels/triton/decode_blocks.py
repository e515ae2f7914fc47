"""The attention and MLP blocks of a layer for a few tokens on an NVIDIA GPU, in few launches."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mrs.kernels.attention_options import AttentionOptions
from mrs.kernels.paged import AttentionBatch, PagedKV, as_bytes
from mrs.kernels.triton.bit_planes import PlaneLayout, Planes
from mrs.kernels.triton.paged_attention import TritonAttention
from mrs.kernels.triton.plane_matrix import FEW_ROWS, FEW_WORDS, ONE, PlaneMatrix

#: With 8 tokens and K-quants, the sums would not fit into registers.
MOST_TOKENS = 4


class GpuWeight(NamedTuple):
    """A matrix as the kernels read it: planes of a layout, or floats without one."""

    data: Planes | Tensor
    layout: PlaneLayout | None
    rows: int
    columns: int

    @classmethod
    def of(cls, matrix: PlaneMatrix | Tensor) -> GpuWeight:
        rows, columns = matrix.shape
        if isinstance(matrix, PlaneMatrix):
            return cls(matrix.planes, matrix.layout, rows, columns)
        return cls(matrix, None, rows, columns)


class RmsNorm(NamedTuple):
    """An RMS norm; `weight` float32."""

    weight: Tensor
    eps: float


def supports(x: Tensor) -> bool:
    """Whether the blocks compute x (N, hidden)."""
    return x.device.type == "cuda" and x.shape[0] <= MOST_TOKENS


def launch_joined_products(
    x: Tensor,
    weights: Sequence[GpuWeight],
    *,
    norm: RmsNorm | None = None,
    bias: Tensor | None = None,
    added: Tensor | None = None,
) -> Tensor:
    """norm(x) (N, columns) times up to three matrices, joined to (N, all rows), + bias + added."""
    from mrs.kernels.triton import decode_products

    rows = [weight.rows for weight in weights] + [0] * (3 - len(weights))
    filled = [*weights, *[weights[0]] * (3 - len(weights))]
    out = x.new_empty(x.shape[0], sum(rows))
    tile = _few_tokens(x)
    if _is_one_token_of_floats(x, weights):
        tile |= {"WORDS": 2 * FEW_WORDS, "num_warps": 2}  # 9 % faster on an H200
    blocks = sum(-(-count // tile["ROWS"]) for count in rows)
    with current_device(x):
        decode_products.joined_products[(blocks,)](
            x,
            x if norm is None else norm.weight,
            *(weight.data for weight in filled),
            x if bias is None else bias,
            x if added is None else added,
            out,
            x.shape[0],
            *rows,
            weights[0].columns,
            0.0 if norm is None else norm.eps,
            ONE,
            COUNT=len(weights),
            **dict(zip(("FIRST", "SECOND", "THIRD"), (w.layout for w in filled), strict=True)),
            HAS_NORM=norm is not None,
            HAS_BIAS=bias is not None,
            HAS_ADDED=added is not None,
            **tile,
        )
    return out


def launch_gated_products(
    x: Tensor, norm: RmsNorm, gate: GpuWeight, up: GpuWeight, activation: str
) -> Tensor:
    """activation(norm(x) @ gate.T) * (norm(x) @ up.T): (N, rows)."""
    from mrs.kernels.triton import decode_products

    out = x.new_empty(x.shape[0], gate.rows)
    tile = _few_tokens(x)
    with current_device(x):
        decode_products.gated_products[(-(-gate.rows // tile["ROWS"]),)](
            x,
            norm.weight,
            gate.data,
            up.data,
            out,
            x.shape[0],
            gate.rows,
            gate.columns,
            norm.eps,
            ONE,
            GATE=gate.layout,
            UP=up.layout,
            ACTIVATION=activation,
            **tile,
        )
    return out


@dataclass(frozen=True)
class HeadShape:
    """The heads of a layer, and how they are rotated; `norms` (2, head_dim) of queries and keys."""

    heads: int
    kv_heads: int
    head_dim: int
    interleaved: bool
    norms: Tensor | None = None
    eps: float = 0.0


def launch_rotate_and_write(
    qkv: Tensor, angles: tuple[Tensor, Tensor], shape: HeadShape, slots: Tensor, kv: PagedKV
) -> Tensor:
    """Queries (N, heads, D) of qkv (N, all rows), rotated; keys and values go to the cache."""
    from mrs.kernels.triton import decode_products

    queries = qkv.new_empty(qkv.shape[0], shape.heads, shape.head_dim)
    keys, values = as_bytes(kv.keys), as_bytes(kv.values)
    with current_device(qkv):
        decode_products.rotate_and_write[(qkv.shape[0], shape.heads + 2 * shape.kv_heads)](
            qkv,
            *angles,
            qkv if shape.norms is None else shape.norms,
            slots,
            keys,
            values,
            queries,
            *keys.stride()[:3],
            *values.stride()[:3],
            shape.eps,
            LARGEST=torch.finfo(kv.keys.dtype).max,
            HEADS=shape.heads,
            KV_HEADS=shape.kv_heads,
            DIM=shape.head_dim,
            PAD=1 << (shape.head_dim - 1).bit_length(),
            PAIRS=angles[0].shape[1],
            BLOCK=kv.block_tokens,
            INTERLEAVED=shape.interleaved,
            HAS_NORMS=shape.norms is not None,
            num_warps=1,
        )
    return queries


def launch_project_heads(
    x: Tensor,
    norm: RmsNorm,
    weights: Sequence[GpuWeight],
    bias: Tensor | None,
    angles: tuple[Tensor, Tensor],
    shape: HeadShape,
    slots: Tensor,
    kv: PagedKV,
) -> Tensor:
    """Queries (N, heads, D) of norm(x), rotated; keys and values go to the cache.

    The heads have no norms.
    """
    from mrs.kernels.triton import decode_products

    queries = x.new_empty(x.shape[0], shape.heads, shape.head_dim)
    keys, values = as_bytes(kv.keys), as_bytes(kv.values)
    units = (shape.heads + 2 * shape.kv_heads) * shape.head_dim // 2
    tile = {name: size for name, size in _few_tokens(x).items() if name != "ROWS"}
    if _is_one_token_of_floats(x, weights):
        tile["WORDS"] = FEW_WORDS // 2  # 14 % faster on an H200
    elif any(weight.layout is not None for weight in weights):
        tile["WORDS"] = FEW_WORDS // tile["TOKENS"]  # else registers run out
    with current_device(x):
        decode_products.project_heads[(units,)](
            x,
            norm.weight,
            *(weight.data for weight in weights),
            x if bias is None else bias,
            *angles,
            slots,
            keys,
            values,
            queries,
            x.shape[0],
            weights[0].columns,
            *keys.stride()[:3],
            *values.stride()[:3],
            norm.eps,
            ONE,
            **dict(zip("QKV", (weight.layout for weight in weights), strict=True)),
            LARGEST=torch.finfo(kv.keys.dtype).max,
            HEADS=shape.heads,
            KV_HEADS=shape.kv_heads,
            DIM=shape.head_dim,
            PAIRS=angles[0].shape[1],
            BLOCK=kv.block_tokens,
            INTERLEAVED=shape.interleaved,
            HAS_BIAS=bias is not None,
            **tile,
        )
    return queries


@dataclass(frozen=True)
class AttentionBlock:
    """x + o(attention(q, k, v of norm(x)))."""

    norm: RmsNorm
    qkv: Sequence[GpuWeight]
    o: GpuWeight
    shape: HeadShape
    options: AttentionOptions
    bias: Tensor | None = None

    def __call__(
        self, x: Tensor, angles: tuple[Tensor, Tensor], kv: PagedKV, batch: AttentionBatch
    ) -> Tensor:
        """x (N, hidden) to (N, hidden); writes the keys and values of the new tokens."""
        x = x.contiguous()
        q = self._queries(x, angles, kv, batch.slot_mapping)
        out = TritonAttention().attend(q, kv, batch, self.options)
        return launch_joined_products(out, (self.o,), added=x)

    def _queries(
        self, x: Tensor, angles: tuple[Tensor, Tensor], kv: PagedKV, slots: Tensor
    ) -> Tensor:
        shape = self.shape
        if shape.norms is None:
            return launch_project_heads(x, self.norm, self.qkv, self.bias, angles, shape, slots, kv)
        qkv = launch_joined_products(x, self.qkv, norm=self.norm, bias=self.bias)
        return launch_rotate_and_write(qkv, angles, shape, slots, kv)


@dataclass(frozen=True)
class MlpBlock:
    """x + down(activation(gate(norm(x))) * up(norm(x)))."""

    norm: RmsNorm
    gate: GpuWeight
    up: GpuWeight
    down: GpuWeight
    activation: str

    def __call__(self, x: Tensor) -> Tensor:
        """x (N, hidden) to (N, hidden)."""
        x = x.contiguous()
        inner = launch_gated_products(x, self.norm, self.gate, self.up, self.activation)
        return launch_joined_products(inner, (self.down,), added=x)

    @staticmethod
    def supports(x: Tensor) -> bool:
        return supports(x)


def current_device(x: Tensor) -> AbstractContextManager[Any]:
    """Triton launches kernels on torch's current device."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()


def _few_tokens(x: Tensor) -> dict[str, int]:
    """The tile of a program. With more rows it reads x less often, if registers suffice: so it has
    as many sums for any number of tokens.
    """
    tokens = 1 << (x.shape[0] - 1).bit_length()
    rows = 2 * FEW_ROWS if tokens == 1 else FEW_ROWS
    words = FEW_WORDS // 2 if tokens > 2 else FEW_WORDS
    return {"TOKENS": tokens, "ROWS": rows, "WORDS": words, "num_warps": 1}


def _is_one_token_of_floats(x: Tensor, weights: Sequence[GpuWeight]) -> bool:
    return x.shape[0] == 1 and all(weight.layout is None for weight in weights)
