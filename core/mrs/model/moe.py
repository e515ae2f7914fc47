"""A mixture of experts as the part of a layer that transforms each token."""

from __future__ import annotations

import torch
from torch import Tensor

from mrs.architecture.layers import Moe, Router
from mrs.kernels.expert_routing import choose_experts, sparsemixer_top_k
from mrs.model.mlp import MlpModule
from mrs.model.weights import ModelWeights


class RouterPart:
    """Scores the experts in float32, chooses some for each token and weighs them."""

    def __init__(self, router: Router, weights: ModelWeights) -> None:
        self._router = router
        self._weight = weights.vector("ffn.router.weight")
        self._bias = weights.optional_vector("ffn.router.bias")
        self._correction = weights.optional_vector("ffn.router.correction")

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x (N, hidden) to the weights and numbers of the chosen experts, (N, chosen) both."""
        router = self._router
        logits = torch.nn.functional.linear(x.float(), self._weight, self._bias)  # (N, E)
        if router.scoring == "sparsemixer":
            return sparsemixer_top_k(logits, router.top_k, router.jitter)
        scores = logits.softmax(-1) if router.scoring == "softmax" else logits.sigmoid()
        chosen = choose_experts(
            scores,
            router.top_k,
            correction=self._correction,
            groups=router.n_group,
            best=router.group_score_experts,
            kept=router.topk_group,
        )
        chosen_scores = scores.gather(-1, chosen)
        if router.norm_topk_prob:
            chosen_scores = chosen_scores / chosen_scores.sum(-1, keepdim=True)
        return chosen_scores * router.scale, chosen


class MoeModule:
    """Runs the chosen experts alone, each once for all tokens that go to it."""

    def __init__(self, part: Moe, weights: ModelWeights) -> None:
        self._router = RouterPart(part.router, weights)
        self._experts = [
            MlpModule(part.expert, weights, f"ffn.experts.{expert}")
            for expert in range(part.router.experts)
        ]
        self._shared = MlpModule(part.shared, weights, "ffn.shared") if part.shared else None
        self._shared_gate = weights.vector("ffn.shared_gate.weight") if part.shared_gate else None

    def __call__(self, x: Tensor) -> Tensor:
        weights, chosen = self._router(x)
        mixed = self._mixed_for_one if x.shape[0] == 1 else self._mixed
        out = mixed(x, weights, chosen)
        if self._shared is not None:
            shared = self._shared(x)
            if self._shared_gate is not None:
                gate = torch.sigmoid(x.float() @ self._shared_gate)
                shared = shared * gate[:, None].to(shared.dtype)
            out += shared
        return out

    def _mixed(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        """The chosen experts' results times their weights, summed for each token."""
        # Pairs of a token and an expert, sorted by expert: each runs on one stretch of them.
        experts, order = chosen.flatten().sort(stable=True)
        tokens = order // chosen.shape[1]
        pair_weights = weights.flatten()[order][:, None].to(x.dtype)
        numbers, counts = torch.unique_consecutive(experts, return_counts=True)
        out, start = torch.zeros_like(x), 0
        for expert, count in zip(numbers.tolist(), counts.tolist(), strict=True):
            pairs = slice(start, start + count)
            rows = tokens[pairs]
            out.index_add_(0, rows, self._experts[expert](x[rows]).mul_(pair_weights[pairs]))
            start += count
        return out

    def _mixed_for_one(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        """The same sum for a single token, whose rows need not be gathered for each expert."""
        out = torch.zeros_like(x)
        numbers, pair_weights = chosen[0].tolist(), weights[0].to(x.dtype).tolist()
        for expert, weight in sorted(zip(numbers, pair_weights, strict=True)):
            out += self._experts[expert](x).mul_(weight)
        return out
