"""A mixture of experts in place of a layer's MLP."""

from __future__ import annotations

from operator import itemgetter

import torch
from torch import Tensor

from mrs.architecture.mixers.moe_spec import Moe, Router
from mrs.kernels.expert_routing import choose_experts, sparsemixer_top_k
from mrs.model.mlp import MlpModule
from mrs.model.model_weights import ModelWeights


class RouterModule:
    """Scores all experts in float32 and chooses `top_k` of them for each token."""

    def __init__(self, router: Router, weights: ModelWeights) -> None:
        self._router = router
        self._weight = weights.vector("ffn.router.weight")
        self._bias = weights.optional_vector("ffn.router.bias")
        self._score_correction_bias = weights.optional_vector("ffn.router.correction")

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x (N, hidden) to the weights and the indices of the chosen experts, (N, top_k) both."""
        router = self._router
        logits = torch.nn.functional.linear(x.float(), self._weight, self._bias)  # (N, E)
        if router.scoring == "sparsemixer":
            return sparsemixer_top_k(logits, router.top_k, router.jitter)
        scores = logits.softmax(-1) if router.scoring == "softmax" else logits.sigmoid()
        indices = choose_experts(
            scores,
            router.top_k,
            score_correction_bias=self._score_correction_bias,
            n_group=router.n_group,
            topk_group=router.topk_group,
            group_score_experts=router.group_score_experts,
        )
        weights = scores.gather(-1, indices)
        if router.norm_topk_prob:
            weights = weights / weights.sum(-1, keepdim=True)
        return weights * router.scale, indices


class MoeModule:
    """The weighted sum of the chosen experts, plus the shared expert if the model has one."""

    def __init__(self, moe: Moe, weights: ModelWeights) -> None:
        self._router = RouterModule(moe.router, weights)
        self._experts = [
            MlpModule(moe.expert, weights, f"ffn.experts.{expert}")
            for expert in range(moe.router.experts)
        ]
        self._shared = MlpModule(moe.shared, weights, "ffn.shared") if moe.shared else None
        self._shared_gate = weights.vector("ffn.shared_gate.weight") if moe.shared_gate else None

    def __call__(self, x: Tensor) -> Tensor:
        """x (N, hidden) to (N, hidden)."""
        weights, indices = self._router(x)
        weighted_sum = self._sum_for_one_token if x.shape[0] == 1 else self._sum_by_expert
        out = weighted_sum(x, weights, indices)
        if self._shared is not None:
            shared = self._shared(x)
            if self._shared_gate is not None:
                gate = torch.sigmoid(x.float() @ self._shared_gate)
                shared = shared * gate[:, None].to(shared.dtype)
            out += shared
        return out

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
        for expert, count in zip(used.tolist(), counts.tolist(), strict=True):
            pairs = slice(start, start + count)
            rows = tokens[pairs]
            out.index_add_(0, rows, self._experts[expert](x[rows]).mul_(pair_weights[pairs]))
            start += count
        return out

    def _sum_for_one_token(self, x: Tensor, weights: Tensor, indices: Tensor) -> Tensor:
        """The same sum for x (1, hidden), without gathering rows for each expert."""
        out = torch.zeros_like(x)
        experts, expert_weights = indices[0].cpu().tolist(), weights[0].to(x.dtype)
        for expert, weight in sorted(zip(experts, expert_weights, strict=True), key=itemgetter(0)):
            out += self._experts[expert](x).mul_(weight)
        return out
