"""The halves of a decoder's layer, each in one or two calls of the native library.

Between two small steps of a decode step the interpreter costs more than the steps themselves: the
weights that were read have driven its memory out of the caches. The results are, bit for bit,
those of the single steps.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from mrs.kernels.library import NativeLibrary, native_library
from mrs.kernels.packed import PackedMatrix
from mrs.kernels.steps import ACTIVATION_NUMBERS, LANES, describe_attention

#: Memory for what is between gate, up and down. The allocator keeps blocks of this size; larger
#: ones it would return to the system, to have every page cleared again for the next layer.
_SCRATCH_BYTES = 16 << 20

#: Tokens of a panel of activations: a chunk should waste none.
_PANEL_TOKENS = 24


class _FeedForward(ctypes.Structure):
    """As native/layer.h describes it."""

    _fields_ = (
        ("norm", ctypes.c_void_p),
        ("eps", ctypes.c_double),
        ("activation", ctypes.c_int64),
        ("gate", ctypes.c_void_p),
        ("up", ctypes.c_void_p),
        ("down", ctypes.c_void_p),
    )


class _AttentionHalf(ctypes.Structure):
    """As native/layer.h describes it."""

    _fields_ = (
        ("norm", ctypes.c_void_p),
        ("eps", ctypes.c_double),
        ("q", ctypes.c_void_p),
        ("k", ctypes.c_void_p),
        ("v", ctypes.c_void_p),
        ("back", ctypes.c_void_p),
        ("pairs", ctypes.c_int64),
        ("interleaved", ctypes.c_int64),
    )


class _Half:
    """What both halves keep: a norm and matrices of one library."""

    def __init__(
        self, library: NativeLibrary, norm: Tensor, matrices: Sequence[PackedMatrix]
    ) -> None:
        self._functions = library.functions
        self._norm = norm
        self._matrices = matrices
        self._dense_tokens = min(matrix.dense_tokens for matrix in matrices)

    def takes(self, x: Tensor) -> bool:
        """Whether x (N, hidden) is multiplied by the library."""
        return x.dtype is torch.float32 and x.shape[0] < self._dense_tokens


class FeedForwardHalf(_Half):
    """x + down(activation(gate(norm(x))) * up(norm(x)))."""

    def __init__(
        self,
        library: NativeLibrary,
        norm: Tensor,
        eps: float,
        activation: str,
        matrices: Sequence[PackedMatrix],
    ) -> None:
        """`matrices` are those of gate, up and down."""
        super().__init__(library, norm, matrices)
        gate, up, down = matrices
        self._scratch_numbers = gate.shape[1] + 2 * gate.shape[0]
        panels = _SCRATCH_BYTES // (2 * 4 * self._scratch_numbers * _PANEL_TOKENS)
        self._chunk_tokens = max(panels, 1) * _PANEL_TOKENS
        self._native = _FeedForward(
            norm.data_ptr(),
            eps,
            ACTIVATION_NUMBERS[activation],
            gate.address,
            up.address,
            down.address,
        )
        self._address = ctypes.addressof(self._native)

    def __call__(self, x: Tensor) -> Tensor:
        """x (N, hidden) float32 to (N, hidden)."""
        x = x.contiguous()
        chunk = self._chunk_tokens
        scratch = torch.empty(min(x.shape[0], 2 * chunk) * self._scratch_numbers)
        out = torch.empty_like(x)
        _require(
            self._functions.mrs_feed_forward(
                self._address,
                x.data_ptr(),
                x.shape[0],
                chunk,
                scratch.data_ptr(),
                out.data_ptr(),
                torch.get_num_threads(),
            )
        )
        return out


class AttentionHalf(_Half):
    """x + back(attention), where queries, keys and values are products of norm(x)."""

    def __init__(
        self,
        library: NativeLibrary,
        norm: Tensor,
        eps: float,
        matrices: Sequence[PackedMatrix],
        head_dim: int,
        pairs: int,
        interleaved: bool,
    ) -> None:
        """`matrices` are those of queries, keys and values and the one back."""
        super().__init__(library, norm, matrices)
        q, k, v, _ = matrices
        self._heads, self._head_dim = q.shape[0] // head_dim, head_dim
        self._scratch_numbers = q.shape[1] + k.shape[0] + v.shape[0]
        self._native = _AttentionHalf(
            norm.data_ptr(),
            eps,
            *(matrix.address for matrix in matrices),
            pairs,
            interleaved,
        )
        self._address = ctypes.addressof(self._native)

    def __call__(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        keys: Tensor,
        values: Tensor,
        scale: float,
        window: int | None,
        softcap: float | None,
        last_seen: Tensor | None,
    ) -> Tensor:
        """x (N, hidden) to (N, hidden); cos and sin (N, pairs) are its tokens' angles.

        `keys` and `values` (KV, S, head size) are a cache whose last N tokens are written here.
        The others are arguments of `attention.attend`.
        """
        tokens = x.shape[0]
        x, cos, sin = x.contiguous(), cos.contiguous(), sin.contiguous()
        q = torch.empty(tokens, self._heads, self._head_dim)
        scratch = torch.empty(tokens * self._scratch_numbers)
        out = torch.empty_like(x)
        attending, _mixed, _held = describe_attention(
            q, keys, values, scale, window, softcap, None, last_seen
        )
        _require(
            self._functions.mrs_attention(
                self._address,
                ctypes.addressof(attending),
                x.data_ptr(),
                cos.data_ptr(),
                sin.data_ptr(),
                scratch.data_ptr(),
                out.data_ptr(),
                torch.get_num_threads(),
            )
        )
        return out


def _require(is_done: bool) -> None:
    if not is_done:
        raise MemoryError("no memory for activations")


def library_of(matrices: Sequence[PackedMatrix]) -> NativeLibrary | None:
    """The library, if there are matrices."""
    return native_library() if matrices else None


def can_hold(head_dim: int) -> bool:
    """Whether the library attends over heads of this size."""
    return head_dim % LANES == 0
