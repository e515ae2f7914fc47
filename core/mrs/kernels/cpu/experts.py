"""The native choice of experts."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor

from mrs.kernels.c_structs import Routing
from mrs.kernels.cpu.library import NativeLibrary
from mrs.kernels.workspace.experts import choice_floats, rank_floats


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


def route(library: NativeLibrary, routing: Routing, x: Tensor) -> tuple[Tensor, Tensor]:
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
