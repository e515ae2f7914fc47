"""The native gated delta rule."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from mrs.kernels.cpu.library import NativeLibrary


class _DeltaRuleStruct(ctypes.Structure):
    """The C struct of the same fields in native/recurrent/delta_rule.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("q", "k", "v", "log_decay", "beta", "state", "out")),
        *((name, ctypes.c_int64) for name in ("tokens", "heads", "key_dim", "value_dim")),
    )


def gated_delta_rule(
    library: NativeLibrary,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    beta: Tensor,
    state: Tensor,
) -> Tensor:
    """As `mrs.kernels.delta_rule.gated_delta_rule`, token by token."""
    inputs = [x.contiguous() for x in (q, k, v, log_decay, beta)]
    out = torch.empty(v.shape)
    rule = _DeltaRuleStruct(*(x.data_ptr() for x in (*inputs, state, out)), *q.shape, v.shape[2])
    done = library.functions.mrs_delta_rule(
        library.path_address, ctypes.addressof(rule), torch.get_num_threads()
    )
    if not done:
        raise MemoryError("not enough memory for the state of linear attention")
    return out
