"""Routers and experts as the native library reads them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

from torch import Tensor

from mrs.kernels import c_structs
from mrs.kernels.cpu.elementwise import gate_code
from mrs.kernels.cpu.experts import RouterVectors
from mrs.kernels.cpu.packed import PackedMatrix
from mrs.layers.moe.spec import Moe, Router

#: In the order of native/experts.h.
_SCORINGS = ("softmax", "sigmoid", "sparsemixer")


def router_vectors(router: Router, vector: Callable[[str], Tensor | None]) -> RouterVectors:
    """The tensors that a layer's router reads; `vector` finds them by name."""

    def optional(name: str, is_read: bool) -> Tensor | None:
        return vector(f"ffn.router.{name}") if is_read else None

    weight, norm = vector("ffn.router.weight"), optional("input_norm", bool(router.input_norm))
    assert weight is not None
    return RouterVectors(
        weight,
        optional("bias", router.bias),
        optional("correction", router.score_correction_bias),
        optional("expert_scale", router.expert_scale),
        None if norm is None else norm * norm.shape[0] ** -0.5,
    )


def native_routing(router: Router, vectors: RouterVectors) -> c_structs.Routing:
    """How a router chooses; it has the addresses of these vectors, float32 and contiguous."""
    experts, hidden = vectors.weight.shape
    assert router.top_k <= experts
    return c_structs.Routing(
        *vectors.addresses,
        experts,
        hidden,
        router.top_k,
        _SCORINGS.index(router.scoring),
        router.n_group,
        router.topk_group,
        router.group_score_experts,
        router.norm_topk_prob,
        router.scale,
        router.input_norm.eps if router.input_norm else 0.0,
        router.jitter,
    )


def native_experts(
    moe: Moe, matrices: Sequence[PackedMatrix], biases: Sequence[Tensor]
) -> tuple[c_structs.Experts, object]:
    """The experts, and what has to live as long: `matrices` and `biases` of each in order.

    There are as many biases as matrices, or none.
    """
    expert = moe.expert
    code, bound = gate_code(expert.activation, expert.clamp)
    arrays = [_pointers(moe, [matrix.address for matrix in matrices])]
    if biases:
        arrays.append(_pointers(moe, [bias.data_ptr() for bias in biases]))
    addresses = [ctypes.addressof(array) for array in arrays]
    source = matrices[0].source
    if source is not None:
        source.owner.asking.add(source.layer)
    experts = c_structs.Experts(
        addresses[0],
        addresses[1] if biases else None,
        moe.router.experts,
        moe.router.top_k,
        matrices[-1].shape[0],
        expert.intermediate,
        code,
        moe.weighs_input,
        bound,
        source.owner.address if source else 0,
        source.layer if source else 0,
        source.owner.room.data_ptr() if source else None,
        source.owner.room.nbytes if source else 0,
    )
    return experts, (experts, arrays, matrices, biases)


def _pointers(moe: Moe, addresses: Sequence[int]) -> ctypes.Array[ctypes.c_void_p]:
    """Three of each expert, the first of which is null if it has no gate."""
    if not moe.expert.gated:
        by_expert = zip(addresses[::2], addresses[1::2], strict=True)
        addresses = [each for up, down in by_expert for each in (0, up, down)]
    return (ctypes.c_void_p * len(addresses))(*addresses)
