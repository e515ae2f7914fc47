"""Attention and MLP blocks of a layer that Triton computes for a few tokens in few launches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mrs.cache.paged_kv import PagedKVCache
from mrs.kernels.triton.decode_blocks import (
    AttentionBlock,
    GpuWeight,
    HeadShape,
    MlpBlock,
    RmsNorm,
    supports,
)
from mrs.kernels.triton.decode_check import has_decode_blocks, has_expert_blocks
from mrs.kernels.triton.expert_blocks import ACTIVATIONS, ExpertMatrices, GroupedExperts
from mrs.kernels.triton.plane_matrix import PlaneMatrix
from mrs.layers.attention.module import attention_options
from mrs.layers.attention.spec import Attention
from mrs.layers.layer import Layer
from mrs.layers.mlp.spec import Mlp
from mrs.layers.moe.spec import Moe
from mrs.layers.rope.module import RopeTable
from mrs.model.batch import ForwardBatch
from mrs.model.fusable import fusable_attention, fusable_mlp, has_fusable_experts
from mrs.model.model_weights import ModelWeights
from mrs.quantization.matrix import DenseMatrix, Matrix


@dataclass(frozen=True)
class TritonAttentionBlock:
    """x + attention(norm(x)) for the tokens of a batch."""

    block: AttentionBlock
    rope: RopeTable

    @staticmethod
    def supports(x: Tensor) -> bool:
        return supports(x)

    def __call__(self, x: Tensor, batch: ForwardBatch, cache: Sequence[PagedKVCache]) -> Tensor:
        """x (N, hidden) to (N, hidden)."""
        group = batch.attention[cache[0].group]
        return self.block(x, self.rope.angles(batch), cache[0].kv, group)


@dataclass(frozen=True)
class TritonMlpBlock:
    """x + mlp(norm(x))."""

    block: MlpBlock

    @staticmethod
    def supports(x: Tensor) -> bool:
        return supports(x)

    def __call__(self, x: Tensor, batch: ForwardBatch, cache: object) -> Tensor:
        """x (N, hidden) to (N, hidden)."""
        return self.block(x)


def triton_blocks(
    layer: Layer, weights: ModelWeights, rope: RopeTable | None
) -> dict[str, TritonAttentionBlock | TritonMlpBlock]:
    """The blocks of a layer that the kernels can compute, by the module that is in them."""
    blocks: dict[str, TritonAttentionBlock | TritonMlpBlock | None] = {}
    if weights.sum_of_ranks is not None:
        return {}
    attention, mlp = fusable_attention(layer), fusable_mlp(layer)
    if attention is not None and rope is not None:
        blocks["mixer"] = _triton_attention(attention, layer, weights, rope)
    if mlp is not None:
        blocks["ffn"] = _triton_mlp(mlp, layer, weights)
    return {name: block for name, block in blocks.items() if block is not None}


def _triton_attention(
    config: Attention, layer: Layer, weights: ModelWeights, rope: RopeTable
) -> TritonAttentionBlock | None:
    """The attention block of a layer that can be fused; None if the kernels cannot compute it."""
    slots = [f"mixer.{part}" for part in "qkv"]
    matrices = _gpu_weights(weights, *slots, "mixer.o")
    if matrices is None:
        return None
    *qkv, o = matrices
    norms = None
    if config.qk_norm is not None:
        norms = torch.stack([weights.vector(f"mixer.{part}_norm.weight") for part in "qk"]).float()
    eps = config.qk_norm.eps if config.qk_norm is not None else 0.0
    interleaved = rope.rope.interleaved
    block = AttentionBlock(
        RmsNorm(weights.vector("mixer.norm.weight"), layer.norm.eps),
        qkv,
        o,
        HeadShape(config.heads, config.kv_heads, config.head_dim, interleaved, norms, eps),
        attention_options(config),
        _joined_bias([weights.optional_vector(f"{slot}.bias") for slot in slots], qkv),
    )
    return TritonAttentionBlock(block, rope)


def _triton_mlp(mlp: Mlp, layer: Layer, weights: ModelWeights) -> TritonMlpBlock | None:
    """The MLP block of a layer that can be fused; None if the kernels cannot compute it."""
    matrices = _gpu_weights(weights, "ffn.gate", "ffn.up", "ffn.down")
    if matrices is None:
        return None
    norm = RmsNorm(weights.vector("ffn.norm.weight"), layer.norm.eps)
    gate, up, down = matrices
    return TritonMlpBlock(MlpBlock(norm, gate, up, down, mlp.activation))


def grouped_experts(moe: Moe, weights: ModelWeights) -> GroupedExperts | None:
    """The experts of a layer; None if the kernels cannot compute them.

    All have to be on the GPU of the router.
    """
    mlp, slots = moe.expert, [f"ffn.experts.{n}" for n in range(moe.router.experts)]
    if not has_fusable_experts(moe, ACTIVATIONS):
        return None
    device = weights.vector("ffn.router.weight").device
    if device.type != "cuda":
        return None
    groups = []
    for part in ("gate", "up", "down"):
        data = [_gpu_data(weights.matrix(f"{slot}.{part}"), device) for slot in slots]
        known = [each for each in data if each is not None]
        biases = [weights.optional_vector(f"{slot}.{part}.bias") for slot in slots]
        group = ExpertMatrices.of(known, biases) if len(known) == len(data) else None
        if group is None:
            return None
        groups.append(group)
    if not all(has_expert_blocks(device, each.layout) for each in groups):
        return None
    gate, up, down = groups
    return GroupedExperts(gate, up, down, mlp.activation, mlp.clamp)


def _gpu_data(matrix: Matrix, device: torch.device) -> PlaneMatrix | Tensor | None:
    """What the kernels read of a matrix on a GPU; None if they cannot."""
    if device.type != "cuda" or matrix.device != device:
        return None
    data = matrix.weight if isinstance(matrix, DenseMatrix) else matrix
    return data if isinstance(data, PlaneMatrix | Tensor) else None


def _gpu_weights(weights: ModelWeights, *slots: str) -> list[GpuWeight] | None:
    """The matrices of these slots; None unless the kernels can read all of them on one GPU."""
    matrices = [weights.matrix(slot) for slot in slots]
    device = matrices[0].device
    data = [_gpu_data(matrix, device) for matrix in matrices]
    packed = [GpuWeight.of(each) for each in data if each is not None]
    is_whole = len(packed) == len(slots)
    return packed if is_whole and all(has_decode_blocks(device, w.layout) for w in packed) else None


def _joined_bias(biases: Sequence[Tensor | None], weights: Sequence[GpuWeight]) -> Tensor | None:
    """The biases of several matrices, float32 (all rows,), with zeros for those without."""
    known = [bias for bias in biases if bias is not None]
    if not known:
        return None
    device = known[0].device
    return torch.cat(
        [
            torch.zeros(weight.rows, device=device) if bias is None else bias.float()
            for bias, weight in zip(biases, weights, strict=True)
        ]
    )
