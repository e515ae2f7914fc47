"""A mixture of experts in place of a layer's MLP, or beside it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from mrs.graph.layer_graph import is_native_router
from mrs.kernels.cpu import elementwise
from mrs.kernels.cpu.experts import route
from mrs.kernels.cpu.packed import PackedMatrix
from mrs.kernels.dense_products import linear
from mrs.kernels.expert_routing import choose_experts, sparsemixer_top_k
from mrs.kernels.nonlinearities import activated
from mrs.kernels.norms import rms_norm
from mrs.kernels.triton.expert_blocks import MOST_TOKENS
from mrs.layers.mlp.module import MlpModule
from mrs.layers.moe.spec import MlpAndMoe, Moe, Router
from mrs.model.model_weights import ModelWeights
from mrs.model.native_experts import native_routing, router_vectors
from mrs.model.triton_blocks import grouped_experts


class RouterModule:
    """Scores all experts in float32 and chooses `top_k` of them for each token."""

    def __init__(self, router: Router, weights: ModelWeights) -> None:
        self._router, self._native = router, None
        self._vectors = router_vectors(router, weights.optional_vector)
        if is_native_router(router) and self._vectors.are_native:
            self._native = native_routing(router, self._vectors)

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x (N, hidden) to the weights and the indices of the chosen experts, (N, top_k) both."""
        router = self._router
        library = elementwise.library_for(x) if self._native is not None else None
        if library is not None and self._native is not None:
            return route(library, self._native, x)
        if router.input_norm is not None:
            x = rms_norm(x.float(), self._vectors.input_norm, router.input_norm.eps)
        logits = linear(x, self._vectors.weight, self._vectors.bias)  # (N, E)
        if router.scoring == "sparsemixer":
            return sparsemixer_top_k(logits, router.top_k, router.jitter)
        scores = logits.softmax(-1) if router.scoring == "softmax" else activated("sigmoid", logits)
        indices = choose_experts(
            scores,
            router.top_k,
            score_correction_bias=self._vectors.correction,
            n_group=router.n_group,
            topk_group=router.topk_group,
            group_score_experts=router.group_score_experts,
        )
        weights = scores.gather(-1, indices)
        if router.norm_topk_prob:
            weights = weights / weights.sum(-1, keepdim=True)
        if self._vectors.expert_scale is not None:
            weights = weights * self._vectors.expert_scale[indices]
        return weights * router.scale, indices


class MoeModule:
    """The router and the experts of a mixture."""

    def __init__(self, config: Moe | MlpAndMoe, weights: ModelWeights) -> None:
        moe = config.moe if isinstance(config, MlpAndMoe) else config
        self.route = RouterModule(moe.router, weights)
        self._experts = [
            MlpModule(moe.expert, weights, f"ffn.experts.{expert}")
            for expert in range(moe.router.experts)
        ]
        self._grouped = grouped_experts(moe, weights)
        self._weighs_input = moe.weighs_input
        # Experts may be on another device than the router; activations on a CPU are float32.
        first = weights.matrix("ffn.experts.0.up")
        self._device = first.device
        # What brings them into memory, if they are on disk.
        self._source = first.source if isinstance(first, PackedMatrix) else None
        if self._source is not None:
            self._source.owner.asking.add(self._source.layer)
        self._dtype = torch.float32 if self._device.type == "cpu" else None

    @property
    def is_grouped(self) -> bool:
        """Whether a few tokens are computed without the host, which knows no chosen experts."""
        return self._grouped is not None

    def mix(self, x: Tensor, weights: Tensor, indices: Tensor) -> Tensor:
        """The weighted sum of what the chosen experts make of x (N, D): (N, D).

        Weights and indices are (N, top_k).
        """
        weighted_sum = self._sum_for_one_token if x.shape[0] == 1 else self._sum_by_expert
        if self._grouped is not None and x.shape[0] <= MOST_TOKENS:
            weighted_sum = self._grouped
        if x.device == self._device:
            return weighted_sum(x, weights, indices)
        there = x.to(self._device, self._dtype or x.dtype)
        return weighted_sum(there, weights.to(self._device), indices.to(self._device)).to(x)

    def _sum_by_expert(self, x: Tensor, weights: Tensor, indices: Tensor) -> Tensor:
        """Calls each chosen expert once, with all of its tokens."""
        # Pairs of a token and an expert, sorted by expert: the pairs of an expert are adjacent.
        # The host decides what to compute, so a GPU hands over the indices once.
        experts, order = indices.flatten().cpu().sort(stable=True)
        order = order.to(x.device)
        tokens = order // indices.shape[1]
        pair_weights = weights.flatten()[order][:, None].to(x.dtype)
        used, counts = torch.unique_consecutive(experts, return_counts=True)
        out, start = torch.zeros_like(x), 0
        for expert, count in zip(self._in_turn(used.tolist()), counts.tolist(), strict=True):
            pairs = slice(start, start + count)
            rows = tokens[pairs]
            weight = pair_weights[pairs]
            out.index_add_(  # no name holds the inputs while the expert computes
                0,
                rows,
                self._weigh_output(
                    self._experts[expert](self._weigh_input(x[rows], weight)), weight
                ),
            )
            start += count
        return out

    def _sum_for_one_token(self, x: Tensor, weights: Tensor, indices: Tensor) -> Tensor:
        """The same sum for x (1, hidden), without gathering rows for each expert."""
        out = torch.zeros_like(x)
        experts, order = indices[0].cpu().sort()
        expert_weights = weights[0].to(x.dtype)[order.to(x.device)]
        for expert, weight in zip(self._in_turn(experts.tolist()), expert_weights, strict=True):
            out += self._weigh_output(self._experts[expert](self._weigh_input(x, weight)), weight)
        return out

    def _in_turn(self, experts: Sequence[int]) -> Iterable[int]:
        """Different experts, each in memory while it has its turn. Raises NotReadable."""
        if self._source is None:
            return experts
        return self._source.owner.in_turn(self._source.layer, experts)

    def _weigh_input(self, x: Tensor, weights: Tensor) -> Tensor:
        """An expert's input x (P, hidden), times its weights (P, 1) if they are for the input."""
        return x * weights if self._weighs_input else x

    def _weigh_output(self, x: Tensor, weights: Tensor) -> Tensor:
        """An expert's output, which may be overwritten, times weights that are for the output."""
        return x if self._weighs_input else x.mul_(weights)
