"""The native choice of experts, and the structs of mixtures: C structs of native/experts.h."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor

from mrs.kernels.cpu.library import NativeLibrary
from mrs.sizes.expert_routing import choice_floats, rank_floats


class NativeRouting(ctypes.Structure):
    """How experts are chosen. It has only addresses: the caller keeps the tensors alive."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("weight", "bias", "correction", "expert_scale")),
        ("input_norm", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("experts", "hidden", "top_k", "scoring")),
        *((name, ctypes.c_int64) for name in ("groups", "top_groups", "group_experts")),
        ("normalizes", ctypes.c_int64),
        *((name, ctypes.c_double) for name in ("scale", "eps", "jitter")),
    )


class NativeExperts(ctypes.Structure):
    """The MLPs of a mixture; `matrices` and `biases` have three addresses for each."""

    _fields_ = (
        ("matrices", ctypes.c_void_p),
        ("biases", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("count", "top_k", "width", "intermediate")),
        *((name, ctypes.c_int64) for name in ("activation", "weighs_input")),
        ("bound", ctypes.c_double),
    )


class RouterVectors(NamedTuple):
    """Float32 tensors of a router: (E, hidden), and (E,) or none; its norm's is (hidden,)."""

    weight: Tensor
    bias: Tensor | None = None
    correction: Tensor | None = None
    expert_scale: Tensor | None = None
    input_norm: Tensor | None = None

    @property
    def are_native(self) -> bool:
        """Whether the library can read them."""
        return all(
            each is None or (each.is_cpu and each.dtype is torch.float32 and each.is_contiguous())
            for each in self
        )

    @property
    def addresses(self) -> tuple[int | None, ...]:
        return tuple(None if each is None else each.data_ptr() for each in self)


def route(library: NativeLibrary, routing: NativeRouting, x: Tensor) -> tuple[Tensor, Tensor]:
    """Weights and indices of the chosen experts, (N, top_k) both, for float32 x (N, hidden)."""
    x, tokens, top_k = x.contiguous(), x.shape[0], routing.top_k
    groups = routing.groups, routing.top_groups
    scores = torch.empty(tokens, routing.experts)
    ranks = torch.empty(tokens, rank_floats(routing.experts, *groups))
    normed = torch.empty_like(x) if routing.input_norm else None
    choice = torch.empty(tokens, choice_floats(top_k))
    library.functions.mrs_route(
        library.path_address,
        ctypes.addressof(routing),
        x.data_ptr(),
        tokens,
        scores.data_ptr(),
        ranks.data_ptr(),
        None if normed is None else normed.data_ptr(),
        choice.data_ptr(),
        torch.get_num_threads(),
    )
    return choice[:, top_k:], choice.view(torch.int32)[:, :top_k].long()
