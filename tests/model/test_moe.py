"""A mixture runs the experts that were chosen, each once, and no other."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import Tensor

from mrs.kernels.expert_routing import choose_experts, sparsemixer_top_k
from mrs.layers.mlp.spec import Mlp
from mrs.layers.moe.module import MoeModule
from mrs.layers.moe.spec import Moe, Router
from mrs.model.model_weights import ModelWeights
from mrs.quantization.matrix import DenseMatrix

EXPERTS, HIDDEN, WIDE = 6, 8, 5


class CountingMatrix(DenseMatrix):
    """Counts its products and the tokens in each."""

    def __init__(self, name: str, weight: Tensor, calls: list[tuple[str, int]]) -> None:
        super().__init__(weight)
        self._name, self._calls = name, calls

    def matmul(self, x: Tensor) -> Tensor:
        self._calls.append((self._name, x.shape[0]))
        return super().matmul(x)


def mixture(chosen: int, calls: list[tuple[str, int]]) -> tuple[MoeModule, Tensor]:
    """A module whose router is the identity: a token's first values are the experts' logits."""
    shapes = {"gate": (WIDE, HIDDEN), "up": (WIDE, HIDDEN), "down": (HIDDEN, WIDE)}
    matrices = {
        f"ffn.experts.{expert}.{slot}.weight": CountingMatrix(
            f"{expert}.{slot}", torch.randn(shape), calls
        )
        for expert in range(EXPERTS)
        for slot, shape in shapes.items()
    }
    router = torch.eye(EXPERTS, HIDDEN)
    weights = ModelWeights(matrices, {"ffn.router.weight": router})
    moe = Moe(Router(EXPERTS, chosen, norm_topk_prob=True), Mlp(WIDE))
    return MoeModule(moe, weights), router


@pytest.mark.parametrize("tokens", [1, 7, 40])
def test_only_the_chosen_experts_run(tokens: int) -> None:
    torch.manual_seed(tokens)
    calls: list[tuple[str, int]] = []
    moe, _ = mixture(2, calls)
    x = torch.randn(tokens, HIDDEN)
    x[:, 4] = -100  # the fifth expert is never chosen
    expected = Counter(x[:, :EXPERTS].topk(2, dim=-1).indices.flatten().tolist())
    moe.mix(x, *moe.route(x))
    assert expected
    assert sorted(calls) == sorted(
        (f"{expert}.{slot}", count)
        for expert, count in expected.items()
        for slot in ("gate", "up", "down")
    )


def test_the_result_is_the_weighted_sum() -> None:
    torch.manual_seed(0)
    calls: list[tuple[str, int]] = []
    moe, _ = mixture(3, calls)
    x = torch.randn(5, HIDDEN)
    out = moe.mix(x, *moe.route(x))
    for token, row in enumerate(x):
        best = row[:EXPERTS].topk(3)
        weights = best.values.softmax(-1)
        results = [moe._experts[expert](row[None])[0] for expert in best.indices.tolist()]
        expected = sum(weight * result for weight, result in zip(weights, results, strict=True))
        torch.testing.assert_close(out[token], expected)


def test_groups_leave_experts_out() -> None:
    scores = torch.tensor([[0.9, 0.0, 0.5, 0.5, 0.6, 0.1]])
    options = {"score_correction_bias": None, "n_group": 3, "topk_group": 1}
    assert choose_experts(scores, 2, group_score_experts=1, **options).tolist() == [[0, 1]]
    assert sorted(choose_experts(scores, 2, group_score_experts=2, **options)[0].tolist()) == [2, 3]


def test_a_correction_changes_the_choice_alone() -> None:
    scores = torch.tensor([[0.9, 0.1, 0.5]])
    chosen = choose_experts(
        scores,
        1,
        score_correction_bias=torch.tensor([0.0, 1.0, 0.0]),
        n_group=1,
        topk_group=1,
        group_score_experts=1,
    )
    assert chosen.tolist() == [[1]]


def test_sparse_choice_weighs_among_close_rivals() -> None:
    scores = torch.tensor([[1.0, 0.995, 0.5, 0.2]])
    weights, chosen = sparsemixer_top_k(scores, 2, jitter=0.01)
    assert chosen.tolist() == [[0, 1]]
    # The second is close to the first, the third to neither.
    first = torch.tensor([1.0, 0.995]).softmax(-1)[0]
    torch.testing.assert_close(weights, torch.tensor([[first, 1.0]]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_single_token_is_mixed_to_the_same_bits(dtype: torch.dtype) -> None:
    """As a batch of tokens is, where each expert's rows are gathered and put back."""
    torch.manual_seed(0)
    moe, _ = mixture(4, [])
    x = torch.randn(1, HIDDEN).to(dtype)
    weights, chosen = moe.route(x)
    alone = moe._sum_for_one_token(x, weights, chosen)
    assert alone.equal(moe._sum_by_expert(x, weights, chosen))
    assert alone.equal(moe.mix(x, weights, chosen))
