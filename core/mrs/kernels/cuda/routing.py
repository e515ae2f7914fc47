"""Which experts compute a token, and with which weights, in one launch with the norm before it."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor

from mrs.kernels.cuda.cubins import Kernel
from mrs.kernels.cuda.launcher import THREADS, TYPES, Launcher
from mrs.kernels.workspace.fragments import COUNTERS

_WARPS = THREADS // 32
#: A lane of a warp has one choice; the scores of all experts are in shared memory.
_MOST_CHOSEN, _MOST_EXPERTS = 32, 2048


class RouterWeights(NamedTuple):
    """float32: the weight (experts, columns), and others (experts,) that a router may have."""

    weight: Tensor
    bias: Tensor | None = None
    correction: Tensor | None = None
    expert_scale: Tensor | None = None


class RoutingRule(NamedTuple):
    """How a router chooses; `sums_to_one`: weights are divided by their sum, then scaled."""

    top_k: int
    scale: float
    is_sigmoid: bool
    sums_to_one: bool


class RoutingTask(ctypes.Structure):
    """`Routing` of route.cu."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "norm", "normed")),
        *((name, ctypes.c_void_p) for name in ("router", "bias", "correction", "expert_scale")),
        *((name, ctypes.c_void_p) for name in ("logits", "weights", "indices", "arrived")),
        *((name, ctypes.c_int) for name in ("columns", "experts", "top_k")),
        ("eps", ctypes.c_float),
        ("scale", ctypes.c_float),
    )


def can_route(router: RouterWeights, rule: RoutingRule) -> bool:
    """Whether `route` reads these weights and has room for the choice."""
    known = [each for each in router if each is not None]
    is_read = all(each.dtype == torch.float32 and each.is_contiguous() for each in known)
    return is_read and rule.top_k <= _MOST_CHOSEN and len(router.weight) <= _MOST_EXPERTS


def route(
    x: Tensor,
    router: RouterWeights,
    rule: RoutingRule,
    launcher: Launcher,
    *,
    norm: Tensor | None = None,
    eps: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """x (N, columns), normed if there is a norm, and weights and indices (N, top_k) of experts.

    `norm` are float32 weights of an RMS norm. ValueError for more tokens than there are counters.
    """
    x, (tokens, columns) = x.contiguous(), x.shape
    if tokens > COUNTERS:
        raise ValueError(f"{tokens} tokens in one launch of at most {COUNTERS}")
    experts, device = len(router.weight), x.device
    normed = x if norm is None else torch.empty(x.shape, dtype=x.dtype, device=device)
    logits = torch.empty(tokens, experts, device=device)
    weights = torch.empty(tokens, rule.top_k, device=device)
    indices = torch.empty(tokens, rule.top_k, dtype=torch.int64, device=device)
    optional = (router.bias, router.correction, router.expert_scale)
    task = RoutingTask(
        x.data_ptr(),
        None if norm is None else norm.data_ptr(),
        normed.data_ptr(),
        router.weight.data_ptr(),
        *(None if each is None else each.data_ptr() for each in optional),
        logits.data_ptr(),
        weights.data_ptr(),
        indices.data_ptr(),
        launcher.counters.data_ptr(),
        columns,
        experts,
        rule.top_k,
        eps,
        rule.scale,
    )
    kernel = route_kernel(
        x.dtype,
        has_norm=norm is not None,
        is_sigmoid=rule.is_sigmoid,
        sums_to_one=rule.sums_to_one,
    )
    if tokens:
        shared_bytes = 4 * (_WARPS + 1 + 2 * experts)
        launcher.launch(kernel, (-(-experts // _WARPS), tokens, 1), shared_bytes, task)
    return normed, weights, indices


def route_kernel(
    dtype: torch.dtype, *, has_norm: bool, is_sigmoid: bool, sums_to_one: bool
) -> Kernel:
    return Kernel.of(
        "route",
        X=TYPES[dtype],
        HAS_NORM=has_norm,
        IS_SIGMOID=is_sigmoid,
        SUMS_TO_ONE=sums_to_one,
    )
