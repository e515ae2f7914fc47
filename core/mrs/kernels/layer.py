"""The halves of a decoder's layer, each in one call of the native library.

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
from mrs.kernels.paged import AttentionBatch, PagedKV
from mrs.kernels.steps import ACTIVATION_NUMBERS
from mrs.sizes.fused_layer import attention_numbers, feed_forward_numbers, most_tokens


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
        ("q_bias", ctypes.c_void_p),
        ("k_bias", ctypes.c_void_p),
        ("v_bias", ctypes.c_void_p),
        ("q_norm", ctypes.c_void_p),
        ("k_norm", ctypes.c_void_p),
        ("head_eps", ctypes.c_double),
        ("head_dim", ctypes.c_int64),
        ("pairs", ctypes.c_int64),
        ("interleaved", ctypes.c_int64),
        ("window", ctypes.c_int64),
        ("scale", ctypes.c_double),
        ("softcap", ctypes.c_double),
    )


class Angles(ctypes.Structure):
    """As native/layer.h describes them."""

    _fields_ = (("cos", ctypes.c_void_p), ("sin", ctypes.c_void_p))


class Half:
    """What both halves keep: a norm and matrices of one library."""

    def __init__(
        self,
        library: NativeLibrary,
        norm: Tensor,
        matrices: Sequence[PackedMatrix],
        native: ctypes.Structure,
        scratch_numbers: int,
    ) -> None:
        """`native` describes the half; a token takes `scratch_numbers`."""
        self.functions = library.functions
        self._held = norm, matrices, native
        self.address = ctypes.addressof(native)
        self.scratch_numbers = scratch_numbers
        self.dense_tokens = min(matrix.dense_tokens for matrix in matrices)
        self.weight_bytes = sum(matrix.nbytes for matrix in matrices)

    def takes(self, x: Tensor) -> bool:
        """Whether x (N, hidden) is multiplied by the library."""
        return x.dtype is torch.float32 and x.shape[0] < self.dense_tokens


class FeedForwardHalf(Half):
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
        gate, up, down = matrices
        native = _FeedForward(
            norm.data_ptr(),
            eps,
            ACTIVATION_NUMBERS[activation],
            gate.address,
            up.address,
            down.address,
        )
        rows, columns = gate.shape
        super().__init__(library, norm, matrices, native, feed_forward_numbers(columns, rows))
        self._most_tokens = most_tokens(self.scratch_numbers)

    def __call__(self, x: Tensor) -> Tensor:
        """x (N, hidden) float32 to (N, hidden)."""
        x = x.contiguous()
        most = self._most_tokens
        scratch = torch.empty(min(x.shape[0], most) * self.scratch_numbers)
        out = torch.empty_like(x)
        require(
            self.functions.mrs_feed_forward(
                self.address,
                x.data_ptr(),
                x.shape[0],
                most,
                scratch.data_ptr(),
                out.data_ptr(),
                torch.get_num_threads(),
            )
        )
        return out


class AttentionHalf(Half):
    """x + back(attention), where queries, keys and values are products of norm(x)."""

    def __init__(
        self,
        library: NativeLibrary,
        norm: Tensor,
        eps: float,
        matrices: Sequence[PackedMatrix],
        head_dim: int,
        *,
        pairs: int,
        interleaved: bool,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
        biases: Sequence[Tensor | None] = (None, None, None),
        head_norms: Sequence[Tensor | None] = (None, None),
        head_eps: float = 0.0,
    ) -> None:
        """`matrices` are those of queries, keys and values and the one back.

        The first three may have `biases`; each head of queries and keys passes `head_norms`.
        `pairs` and `interleaved` are as in `rope.rotate`, the rest as in `attention.attend`.
        """
        q, k, *_ = matrices
        vectors = [None if each is None else each.float() for each in (*biases, *head_norms)]
        native = _AttentionHalf(
            norm.data_ptr(),
            eps,
            *(matrix.address for matrix in matrices),
            *(None if vector is None else vector.data_ptr() for vector in vectors),
            head_eps,
            head_dim,
            pairs,
            interleaved,
            window or 0,
            scale,
            softcap or 0.0,
        )
        numbers = attention_numbers(q.shape[1], q.shape[0], k.shape[0])
        super().__init__(library, norm, matrices, native, numbers)
        self._vectors = vectors

    def __call__(
        self, x: Tensor, cos: Tensor, sin: Tensor, cache: PagedKV, batch: AttentionBatch
    ) -> Tensor:
        """x (N, hidden) float32 to (N, hidden); cos and sin (N, pairs) are its tokens' angles.

        The keys and values of the batch's tokens are written to `cache`.
        """
        x, cos, sin = x.contiguous(), cos.contiguous(), sin.contiguous()
        angles = Angles(cos.data_ptr(), sin.data_ptr())
        scratch = torch.empty(x.shape[0] * self.scratch_numbers)
        out = torch.empty_like(x)
        require(
            self.functions.mrs_attention(
                self.address,
                cache.address,
                batch.address,
                ctypes.addressof(angles),
                x.data_ptr(),
                scratch.data_ptr(),
                out.data_ptr(),
                torch.get_num_threads(),
            )
        )
        return out


def require(is_done: bool) -> None:
    """MemoryError if a call of the library was not done."""
    if not is_done:
        raise MemoryError("no memory for activations")


def library_of(matrices: Sequence[PackedMatrix]) -> NativeLibrary | None:
    """The library, if there are matrices."""
    return native_library() if matrices else None
