"""The blocks of a decoder layer, and the logits, each in one call of the native library.

Between two small operations of a decode step, the interpreter takes longer than the operations
themselves: reading the weights has evicted its memory from the processor's caches. The results
equal those of the separate operations bit for bit.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from mrs.kernels.cpu.elementwise import ACTIVATION_CODES
from mrs.kernels.cpu.library import NativeLibrary, native_library
from mrs.kernels.cpu.packed import PackedMatrix
from mrs.kernels.paged import AttentionBatch, PagedKV
from mrs.sizes.fused_workspace import attention_floats, mlp_floats, tokens_at_once


class _MlpStruct(ctypes.Structure):
    """The C struct of the same fields in native/layer.h."""

    _fields_ = (
        ("norm", ctypes.c_void_p),
        ("eps", ctypes.c_double),
        ("activation", ctypes.c_int64),
        ("gate", ctypes.c_void_p),
        ("up", ctypes.c_void_p),
        ("down", ctypes.c_void_p),
    )


class _AttentionStruct(ctypes.Structure):
    """The C struct of the same fields in native/layer.h."""

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


class _ReadoutStruct(ctypes.Structure):
    """The C struct of the same fields in native/layer.h."""

    _fields_ = (("norm", ctypes.c_void_p), ("eps", ctypes.c_double), ("head", ctypes.c_void_p))


class Angles(ctypes.Structure):
    """cos and sin of the rotary angles, (tokens, pairs): a C struct of native/layer.h."""

    _fields_ = (("cos", ctypes.c_void_p), ("sin", ctypes.c_void_p), ("tokens", ctypes.c_int64))


class NativeBlock:
    """The base of all of them: a norm and packed matrices."""

    def __init__(
        self,
        library: NativeLibrary,
        norm: Tensor,
        matrices: Sequence[PackedMatrix],
        native: ctypes.Structure,
        workspace_floats: int,
    ) -> None:
        """`native` is the C struct; each token needs `workspace_floats` values of workspace."""
        self.functions = library.functions
        self._keep_alive = norm, matrices, native
        self.address = ctypes.addressof(native)
        self.workspace_floats = workspace_floats
        self.weight_bytes = sum(matrix.nbytes for matrix in matrices)

    def supports(self, x: Tensor) -> bool:
        """Whether the library multiplies x (N, hidden): float32, on the CPU, any tokens."""
        return x.is_cpu and x.dtype is torch.float32 and x.shape[0] > 0


class NativeMlpBlock(NativeBlock):
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
        native = _MlpStruct(
            norm.data_ptr(),
            eps,
            ACTIVATION_CODES[activation],
            gate.address,
            up.address,
            down.address,
        )
        rows, columns = gate.shape
        super().__init__(library, norm, matrices, native, mlp_floats(columns, rows))
        self._tokens_at_once = tokens_at_once(self.workspace_floats)

    def __call__(self, x: Tensor) -> Tensor:
        """x (N, hidden) float32 to (N, hidden)."""
        x = x.contiguous()
        at_once = self._tokens_at_once
        workspace = torch.empty(min(x.shape[0], at_once) * self.workspace_floats)
        out = torch.empty_like(x)
        self.functions.mrs_feed_forward(
            self.address,
            x.data_ptr(),
            x.shape[0],
            at_once,
            workspace.data_ptr(),
            out.data_ptr(),
            torch.get_num_threads(),
        )
        return out


class NativeAttentionBlock(NativeBlock):
    """x + o(attention(q, k, v)), where q, k and v are products of norm(x)."""

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
        """`matrices` are those of q, k, v and o; `biases` are those of q, k and v.

        `head_norms` are the weights of the RMS norms of the heads of q and k. `pairs` and
        `interleaved` are as in `kernels.rotate`, the rest as in `attend_with_torch`.
        """
        q, k, *_ = matrices
        vectors = [None if each is None else each.float() for each in (*biases, *head_norms)]
        native = _AttentionStruct(
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
        floats = attention_floats(q.shape[1], q.shape[0], k.shape[0])
        super().__init__(library, norm, matrices, native, floats)
        self._vectors = vectors

    def __call__(
        self, x: Tensor, cos: Tensor, sin: Tensor, cache: PagedKV, batch: AttentionBatch
    ) -> Tensor:
        """x (N, hidden) float32 to (N, hidden); cos and sin are (N, pairs).

        Writes the keys and values of the batch's tokens to `cache`. Raises BadIndex.
        """
        x, cos, sin = x.contiguous(), cos.contiguous(), sin.contiguous()
        angles = Angles(cos.data_ptr(), sin.data_ptr(), cos.shape[0])
        workspace = torch.empty(x.shape[0] * self.workspace_floats)
        out = torch.empty_like(x)
        self.functions.mrs_attention(
            self.address,
            cache.address,
            batch.address,
            ctypes.addressof(angles),
            x.data_ptr(),
            x.shape[0],
            workspace.data_ptr(),
            out.data_ptr(),
            torch.get_num_threads(),
        )
        return out


class NativeReadout(NativeBlock):
    """The logits: the output head after the final norm."""

    def __init__(
        self, library: NativeLibrary, norm: Tensor, eps: float, matrices: Sequence[PackedMatrix]
    ) -> None:
        """`matrices` is the head's."""
        (head,) = matrices
        native = _ReadoutStruct(norm.data_ptr(), eps, head.address)
        super().__init__(library, norm, matrices, native, head.shape[1])
        self.vocab_size = head.shape[0]

    def __call__(self, x: Tensor) -> Tensor:
        """x (N, hidden) float32 to (N, vocab)."""
        x = x.contiguous()
        workspace = torch.empty(x.shape[0] * self.workspace_floats)
        out = torch.empty(x.shape[0], self.vocab_size)
        self.functions.mrs_readout(
            self.address,
            x.data_ptr(),
            x.shape[0],
            workspace.data_ptr(),
            out.data_ptr(),
            torch.get_num_threads(),
        )
        return out


def native_library_for(matrices: Sequence[PackedMatrix]) -> NativeLibrary | None:
    """The library, if there are packed matrices to multiply."""
    return native_library() if matrices else None
