"""Whole token mixers with recurrent states, each in one call of the native library.

They are for a few tokens, as the programs of several layers are, and their results
equal those of the separate operations bit for bit, too.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from mrs.kernels.cpu.elementwise import ACTIVATION_CODES
from mrs.kernels.cpu.library import NativeLibrary
from mrs.kernels.cpu.packed import PackedMatrix
from mrs.sizes.fused_workspace import FEW_TOKENS
from mrs.sizes.state_mixers import LinearAttentionSizes, linear_attention_floats, mamba2_floats

#: The inputs that a sequence's convolution remembers, and its state; both are updated in place.
State = tuple[Tensor, Tensor]


class _LinearAttentionStruct(ctypes.Structure):
    """The C struct of the same fields in native/recurrent/linear_attention.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("q", "k", "v", "gate_in", "gate", "back", "beta")),
        *((name, ctypes.c_void_p) for name in ("step_in", "step", "step_bias", "decay")),
        ("convolutions", ctypes.c_void_p * 3),
        *((name, ctypes.c_void_p) for name in ("q_length", "k_length", "head_norm")),
        *((name, ctypes.c_double) for name in ("length_eps", "head_eps")),
        *((name, ctypes.c_int64) for name in ("heads", "key_heads", "inner", "taps")),
        ("activation", ctypes.c_int64),
        ("tiled", ctypes.c_bool),
    )


class _Mamba2Struct(ctypes.Structure):
    """The C struct of the same fields in native/recurrent/mamba2.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("in_", "back", "convolution", "convolution_bias")),
        *((name, ctypes.c_void_p) for name in ("step_bias", "decay", "skip", "norm")),
        *((name, ctypes.c_double) for name in ("eps", "least_step", "most_step")),
        *((name, ctypes.c_int64) for name in ("heads", "groups", "head_dim", "state_dim", "taps")),
        ("norm_before_gate", ctypes.c_bool),
    )


class _StateBatchStruct(ctypes.Structure):
    """The C struct of the same fields in native/recurrent/state_batch.h."""

    _fields_ = (
        ("sequences", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("starts", "recent", "state")),
    )


class NativeStateMixer:
    """The base of all of them: packed matrices, and vectors in float32."""

    def __init__(
        self,
        library: NativeLibrary,
        function: str,
        matrices: Sequence[PackedMatrix],
        vectors: Sequence[Tensor | None],
        native: ctypes.Structure,
        token_floats: int,
    ) -> None:
        """The library's `function` takes the C struct `native`.

        A token needs `token_floats` values of workspace.
        """
        self._functions, self._function = library.functions, function
        self._keep_alive = matrices, vectors, native
        self._address = ctypes.addressof(native)
        self._token_floats = token_floats

    def supports(self, x: Tensor) -> bool:
        """Whether the library computes x (N, hidden): float32, and a few tokens."""
        return x.dtype is torch.float32 and x.shape[0] <= FEW_TOKENS

    def __call__(self, x: Tensor, starts: Sequence[int], states: Sequence[State]) -> Tensor:
        """x (N, hidden) to (N, hidden); updates the states.

        The tokens of sequence i are those from `starts[i]` to `starts[i + 1]`. Raises BadIndex.
        """
        x = x.contiguous()
        count = len(states)
        pointers = ctypes.c_void_p * count
        bounds = (ctypes.c_int32 * (count + 1))(*starts)
        recent = pointers(*[each[0].data_ptr() for each in states])
        state = pointers(*[each[1].data_ptr() for each in states])
        addresses = [ctypes.addressof(each) for each in (bounds, recent, state)]
        batch = _StateBatchStruct(count, *addresses)
        workspace = torch.empty(x.shape[0] * self._token_floats)
        out = torch.empty_like(x)
        getattr(self._functions, self._function)(
            self._address,
            ctypes.addressof(batch),
            x.data_ptr(),
            x.shape[0],
            workspace.data_ptr(),
            out.data_ptr(),
            torch.get_num_threads(),
        )
        return out


class NativeLinearAttention(NativeStateMixer):
    """Linear attention by a delta rule, with a decay of each head or of each key."""

    def __init__(
        self,
        library: NativeLibrary,
        matrices: Sequence[PackedMatrix],
        *,
        key_heads: int,
        beta: Tensor,
        steps: Sequence[Tensor],
        step_bias: Tensor,
        decay: Tensor,
        convolutions: Sequence[Tensor],
        head_norm: Tensor,
        head_eps: float,
        length_eps: float,
        activation: str,
        tiled: bool = False,
    ) -> None:
        """`matrices` are those of q, k, v, one or two for the gate, and the output's.

        `steps` are the small matrices of the decay: one (heads, hidden); or (inner, hidden) and
        (keys, inner), if each key has one. `convolutions` are the weights (channels, taps) of q, k
        and v, `activation` is that of the gate. Queries and keys are normalized with `length_eps`
        added to their squared length. A key head serves adjacent heads, unless they are
        `tiled`.
        """
        q, k, v, *gates, back = matrices
        heads, key_dim = len(decay), q.shape[0] // key_heads
        length_weights = [
            torch.full((key_dim,), scale * key_dim**-0.5) for scale in (key_dim**-0.5, 1.0)
        ]
        inner = len(steps[0]) if len(steps) > 1 else 0
        native = _LinearAttentionStruct(
            *(q.address, k.address, v.address),
            gates[0].address if len(gates) > 1 else None,
            *(gates[-1].address, back.address, beta.data_ptr()),
            steps[0].data_ptr() if inner else None,
            *(vector.data_ptr() for vector in (steps[-1], step_bias, decay)),
            (ctypes.c_void_p * 3)(*[each.data_ptr() for each in convolutions]),
            *(vector.data_ptr() for vector in (*length_weights, head_norm)),
            *(length_eps / key_dim, head_eps, heads, key_heads, inner, convolutions[0].shape[1]),
            *(ACTIVATION_CODES[activation], tiled),
        )
        sizes = LinearAttentionSizes(q.shape[0], v.shape[0], heads, len(steps[-1]), inner)
        vectors = [beta, *steps, step_bias, decay, *convolutions, *length_weights, head_norm]
        floats = linear_attention_floats(sizes)
        super().__init__(library, "mrs_linear_attention", matrices, vectors, native, floats)


class NativeMamba2(NativeStateMixer):
    """A selective state space."""

    def __init__(
        self,
        library: NativeLibrary,
        matrices: Sequence[PackedMatrix],
        *,
        groups: int,
        state_dim: int,
        convolution: Tensor,
        convolution_bias: Tensor | None,
        step_bias: Tensor,
        step_bounds: tuple[float, float],
        decay: Tensor,
        skip: Tensor,
        norm: Tensor | None,
        eps: float,
        norm_before_gate: bool,
    ) -> None:
        """`matrices` are those of the input and the output; `norm` is (values,)."""
        into, back = matrices
        heads, values = len(decay), back.shape[1]
        vectors = [convolution, convolution_bias, step_bias, decay, skip, norm]
        native = _Mamba2Struct(
            *(into.address, back.address),
            *(None if vector is None else vector.data_ptr() for vector in vectors),
            *(eps, *step_bounds, heads, groups, values // heads, state_dim),
            *(convolution.shape[1], norm_before_gate),
        )
        floats = mamba2_floats(into.shape[0], values, heads)
        super().__init__(library, "mrs_mamba2", matrices, vectors, native, floats)
