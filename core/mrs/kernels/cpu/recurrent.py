"""The native recurrences and their convolution, for float32 tensors on the CPU.

The modules of `mrs.kernels` choose between these functions and torch; no other code calls them.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from mrs.kernels import c_structs
from mrs.kernels.cpu.library import NativeLibrary


def delta_rule(
    library: NativeLibrary,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    beta: Tensor,
    state: Tensor,
    *,
    tiled: bool = False,
) -> Tensor:
    """The delta rule token by token, with a decay of each head (T, H) or of each key (T, H, D)."""
    inputs = [x.contiguous() for x in (q, k, v, log_decay, beta)]
    out = torch.empty(v.shape)
    tokens, heads, value_dim = v.shape
    addresses = (x.data_ptr() for x in (*inputs, state, out))
    sizes = tokens, heads, q.shape[1], q.shape[2], value_dim
    rule = c_structs.DeltaRule(*addresses, *sizes, tiled)
    functions = library.functions
    function = functions.mrs_delta_rule if log_decay.dim() == 2 else functions.mrs_key_delta_rule
    function(library.path_address, ctypes.addressof(rule), torch.get_num_threads())
    return out


def convolve(
    library: NativeLibrary,
    x: Tensor,
    state: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    silu: bool,
) -> Tensor:
    """As `mrs.kernels.causal_convolution`; the values of a row of x are adjacent."""
    out = torch.empty(x.shape)
    convolution = c_structs.Convolution(
        x.data_ptr(),
        weight.data_ptr(),
        None if bias is None else bias.data_ptr(),
        state.data_ptr(),
        out.data_ptr(),
        *x.shape,
        weight.shape[1],
        x.stride(0),
        out.stride(0),
        silu,
    )
    library.functions.mrs_convolve(
        library.path_address, ctypes.addressof(convolution), torch.get_num_threads()
    )
    return out


def state_space(
    library: NativeLibrary,
    x: Tensor,
    b: Tensor,
    c: Tensor,
    step: Tensor,
    decay: Tensor,
    skip: Tensor,
    state: Tensor,
) -> Tensor:
    """As `mrs.kernels.state_space.scan`; the values of a token are adjacent in x, b and c.

    There is a decay for each head (H,), or for each value of its state (H, N).
    """
    step = step.contiguous()
    out = torch.empty(x.shape)
    space = c_structs.StateSpace(
        *(each.data_ptr() for each in (x, b, c, step, decay, skip, state, out)),
        *(x.shape[0], x.shape[1], b.shape[1], x.shape[2], b.shape[2]),
        *(each.stride(0) for each in (x, b, c)),
        decay[0].numel(),
    )
    library.functions.mrs_state_space(
        library.path_address, ctypes.addressof(space), torch.get_num_threads()
    )
    return out
