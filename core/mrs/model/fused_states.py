"""Token mixers with recurrent states that the native library computes in one call.

All other cases are computed operation by operation, with the same results.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from mrs.architecture.mixers.delta_net_spec import GatedDeltaNet
from mrs.architecture.mixers.kda_spec import KimiDeltaAttention
from mrs.architecture.mixers.mamba2_spec import Mamba2
from mrs.cache.recurrent_state import RecurrentStateCache
from mrs.kernels.cpu.library import native_library
from mrs.kernels.cpu.state_mixers import NativeLinearAttention, NativeMamba2, NativeStateMixer
from mrs.kernels.delta_rule import L2_EPS
from mrs.model.batch import ForwardBatch
from mrs.model.model_weights import ModelWeights
from mrs.sizes.fusable import is_fusable_mixer


class FusedStateMixer:
    """The mixer of a layer for batches of a few tokens."""

    def __init__(self, native: NativeStateMixer) -> None:
        self._native = native

    def supports(self, x: Tensor) -> bool:
        return self._native.supports(x)

    def __call__(
        self, x: Tensor, batch: ForwardBatch, cache: Sequence[RecurrentStateCache]
    ) -> Tensor:
        """x (N, hidden) to (N, hidden); updates the states of the sequences."""
        starts = [rows.start for rows, _ in batch.queries]
        states = [(each.tensors[0], each.tensors[1]) for each in cache]
        return self._native(x, [*starts, x.shape[0]], states)


def fuse_delta_net(config: GatedDeltaNet, weights: ModelWeights) -> FusedStateMixer | None:
    """The fused mixer; None if the library cannot compute it."""
    matrices = weights.packed(*(f"mixer.{slot}" for slot in ("q", "k", "v", "z", "out")))
    library = native_library() if matrices and is_fusable_mixer(config) else None
    if library is None:
        return None
    keys = config.key_heads * config.key_dim
    convolution = weights.vector("mixer.conv.weight")
    return FusedStateMixer(
        NativeLinearAttention(
            library,
            matrices,
            key_heads=config.key_heads,
            beta=weights.vector("mixer.beta.weight"),
            steps=[weights.vector("mixer.step.weight")],
            step_bias=weights.vector("mixer.step_bias"),
            decay=weights.vector("mixer.decay"),
            convolutions=[
                convolution[:keys],
                convolution[keys : 2 * keys],
                convolution[2 * keys :],
            ],
            head_norm=weights.vector("mixer.head_norm.weight"),
            head_eps=config.norm.eps,
            length_eps=L2_EPS,
            activation="silu",
            tiled=config.tiled,
        )
    )


def fuse_kda(config: KimiDeltaAttention, weights: ModelWeights) -> FusedStateMixer | None:
    """As `fuse_delta_net`."""
    slots = ("q", "k", "v", "gate_in", "gate_out", "out")
    matrices = weights.packed(*(f"mixer.{slot}" for slot in slots))
    library = native_library() if matrices and is_fusable_mixer(config) else None
    if library is None:
        return None
    return FusedStateMixer(
        NativeLinearAttention(
            library,
            matrices,
            key_heads=config.heads,
            beta=weights.vector("mixer.beta.weight"),
            steps=[weights.vector(f"mixer.decay_{part}.weight") for part in ("in", "out")],
            step_bias=weights.vector("mixer.step_bias"),
            decay=weights.vector("mixer.decay"),
            convolutions=[weights.vector(f"mixer.conv_{part}.weight") for part in "qkv"],
            head_norm=weights.vector("mixer.head_norm.weight"),
            head_eps=config.norm.eps,
            length_eps=L2_EPS,
            activation="sigmoid",
        )
    )


def fuse_mamba2(config: Mamba2, weights: ModelWeights) -> FusedStateMixer | None:
    """As `fuse_delta_net`."""
    matrices = weights.packed("mixer.in", "mixer.out")
    library = native_library() if matrices and is_fusable_mixer(config) else None
    if library is None:
        return None
    return FusedStateMixer(
        NativeMamba2(
            library,
            matrices,
            groups=config.groups,
            state_dim=config.state_dim,
            convolution=weights.vector("mixer.conv.weight"),
            convolution_bias=weights.optional_vector("mixer.conv.bias"),
            step_bias=weights.vector("mixer.step_bias"),
            step_bounds=(config.least_step, config.most_step),
            decay=weights.vector("mixer.decay"),
            skip=weights.vector("mixer.skip"),
            norm=None if config.norm is None else weights.vector("mixer.head_norm.weight"),
            eps=0.0 if config.norm is None else config.norm.eps,
            norm_before_gate=config.norm_before_gate,
        )
    )
