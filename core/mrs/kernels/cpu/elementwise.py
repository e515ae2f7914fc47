"""Native norms, activations, rotary embedding and attention, for float32 tensors on the CPU.

The modules of `mrs.kernels` choose between these functions and torch; no other code calls them.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from mrs.errors import BadIndex
from mrs.kernels import c_structs
from mrs.kernels.attention_options import AttentionOptions
from mrs.kernels.cpu.library import NativeLibrary, native_library
from mrs.kernels.native_limits import ACTIVATIONS, is_native
from mrs.kernels.native_structs import CACHE_TYPES, NativeBatch, NativeKV

#: The library's codes for the activation functions that it computes.
ACTIVATION_CODES = {name: code for code, name in enumerate(ACTIVATIONS)}

#: In place of the bound of a function that clamps neither gate nor up.
NO_BOUND = -1.0

#: log2 of a block size that no sequence exceeds.
_ONE_BLOCK_SHIFT = 62


def library_for(x: Tensor) -> NativeLibrary | None:
    """The library, if x is a float32 tensor on the CPU."""
    return native_library() if x.is_cpu and x.dtype is torch.float32 else None


def rms_norm(library: NativeLibrary, x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """As `mrs.kernels.norms`."""
    x = x.contiguous()
    out = torch.empty_like(x)
    size = x.shape[-1]
    library.functions.mrs_rms_norm(
        library.path_address,
        x.data_ptr(),
        None if weight is None else weight.data_ptr(),
        eps,
        x.numel() // size,
        size,
        out.data_ptr(),
        torch.get_num_threads(),
    )
    return out


def layer_norm(
    library: NativeLibrary, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """As `mrs.kernels.norms`; weights and bias in float32."""
    x = x.contiguous()
    out, size = torch.empty_like(x), x.shape[-1]
    library.functions.mrs_layer_norm(
        library.path_address,
        x.data_ptr(),
        None if weight is None else weight.data_ptr(),
        None if bias is None else bias.data_ptr(),
        eps,
        x.numel() // size,
        size,
        1 if weight is None else weight.numel() // size,
        out.data_ptr(),
        torch.get_num_threads(),
    )
    return out


def xielu(library: NativeLibrary, x: Tensor, numbers: Tensor) -> Tensor:
    """xIELU of x, which is contiguous and overwritten, by the `numbers` of `mrs.kernels.xielu`."""
    library.functions.mrs_xielu(
        library.path_address,
        numbers.data_ptr(),
        x.data_ptr(),
        x.numel(),
        torch.get_num_threads(),
    )
    return x


def gate(library: NativeLibrary, activation: str, gate: Tensor, up: Tensor | None) -> Tensor:
    """activation(gate) * up, written to `gate`; both are contiguous and of the same shape.

    `up` may be None: ones.
    """
    library.functions.mrs_gate(
        library.path_address,
        ACTIVATION_CODES[activation],
        gate.data_ptr(),
        None if up is None else up.data_ptr(),
        gate.numel(),
        torch.get_num_threads(),
    )
    return gate


def cut_off(library: NativeLibrary, x: Tensor, deviations: float) -> Tensor:
    """As `mrs.kernels.nonlinearities`; x (N, D) is contiguous and overwritten."""
    library.functions.mrs_cut_off(x.data_ptr(), *x.shape, deviations, torch.get_num_threads())
    return x


def gate_code(activation: str, clamp: float) -> tuple[int, float]:
    """The library's code of a function of gate and up, and the bound by which it clamps them."""
    if activation == "clamped_swiglu":
        return ACTIVATION_CODES["quick_gelu"], clamp
    return ACTIVATION_CODES[activation], NO_BOUND


def rotate(
    library: NativeLibrary, x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool
) -> Tensor:
    """x (T, H, D), cos and sin (T, P). Raises BadIndex for another T."""
    if not len(x) == len(cos) == len(sin):
        raise BadIndex("rows", len(x), min(len(cos), len(sin)), where="the native rotate")
    x, cos, sin = x.contiguous(), cos.contiguous(), sin.contiguous()
    out = torch.empty_like(x)
    library.functions.mrs_rotate(
        library.path_address,
        x.data_ptr(),
        cos.data_ptr(),
        sin.data_ptr(),
        *x.shape,
        cos.shape[-1],
        interleaved,
        out.data_ptr(),
        torch.get_num_threads(),
    )
    return out


def can_attend(k: Tensor, v: Tensor) -> bool:
    """Whether `attend` supports keys and values (…, D) of these sizes, types and strides."""
    return (
        k.dtype in CACHE_TYPES
        and v.dtype is k.dtype
        and k.is_cpu
        and all(is_native(x.shape[-1]) and x.stride(-1) == 1 for x in (k, v))
    )


def attend(
    library: NativeLibrary,
    q: Tensor,
    cache: NativeKV,
    batch: NativeBatch,
    kv_heads: int,
    options: AttentionOptions,
) -> Tensor:
    """Attention of a batch's new tokens: q (N, H, D) to (N, H * Dv). Raises BadIndex."""
    q = q.contiguous()
    sinks = None if options.sinks is None else options.sinks.float()
    out = torch.empty(q.shape[0], q.shape[1] * cache.values.dim)
    params = c_structs.AttentionParams(
        q.data_ptr(),
        out.data_ptr(),
        ctypes.addressof(cache),
        ctypes.addressof(batch),
        None if sinks is None else sinks.data_ptr(),
        q.shape[0],
        q.shape[1],
        kv_heads,
        options.window or 0,
        options.scale,
        options.softcap or 0.0,
    )
    address = ctypes.addressof(params)
    library.functions.mrs_attend(library.path_address, address, torch.get_num_threads())
    return out


def attend_to_all(
    library: NativeLibrary, q: Tensor, k: Tensor, v: Tensor, options: AttentionOptions
) -> Tensor:
    """Attention of queries (T, H, D) to all keys (KV, S, D) and values: to (T, H * Dv)."""
    whole = WholeKeys(k, v)
    return attend(library, q, whole.native, whole.read_by(len(q)).native, len(k), options)


class WholeKeys:
    """Keys (KV, S, D) and values of which all tokens read all, as a cache of one block."""

    def __init__(self, k: Tensor, v: Tensor) -> None:
        self._alive, self._keys = (k, v), k.shape[1]
        self.native = NativeKV.of(k[None], v[None], _ONE_BLOCK_SHIFT)
        self.address = ctypes.addressof(self.native)
        self._batch: WholeBatch | None = None

    def read_by(self, tokens: int) -> WholeBatch:
        """So many tokens of one sequence: often as many as before."""
        if self._batch is None or self._batch.tokens != tokens:
            self._batch = WholeBatch(tokens, self._keys)
        return self._batch


class WholeBatch:
    """New tokens of one sequence that read all of some keys."""

    def __init__(self, tokens: int, keys: int) -> None:
        bounds = torch.tensor([0, tokens, keys, 0], dtype=torch.int32)
        # None of them is written; a program checks the slots of all its tokens.
        ends, slots = torch.full((tokens,), keys - 1), torch.zeros(tokens, dtype=torch.int64)
        self.tokens, self._alive = tokens, (bounds, ends, slots)
        start, context, table = (bounds[first:].data_ptr() for first in (0, 2, 3))
        places = slots.data_ptr(), ends.data_ptr()
        self.native = NativeBatch(1, 1, tokens, start, context, table, *places)
        self.address = ctypes.addressof(self.native)


def write_kv(
    library: NativeLibrary, cache: NativeKV, batch: NativeBatch, k: Tensor, v: Tensor | None
) -> None:
    """Write keys (N, KV, D) and values to the slots; v is None if the keys contain the values.

    Raises BadIndex.
    """
    k, v = k.contiguous(), None if v is None else v.contiguous()
    library.functions.mrs_write_kv(
        library.path_address,
        ctypes.addressof(cache),
        ctypes.addressof(batch),
        k.data_ptr(),
        None if v is None else v.data_ptr(),
        *k.shape[:2],
        torch.get_num_threads(),
    )
