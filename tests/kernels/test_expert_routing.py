"""The native choice of experts is that of torch's operations, and never an expert that is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from mrs.kernels.cpu import elementwise
from mrs.kernels.cpu.library import NativeLibrary
from mrs.layers.moe.module import RouterModule
from mrs.layers.moe.spec import Router
from mrs.layers.norm.spec import Norm
from mrs.model.model_weights import ModelWeights

EXPERTS, HIDDEN, TOP_K = 24, 40, 5
ROUTER = Router(EXPERTS, TOP_K)
ROUTERS: dict[str, dict[str, Any]] = {
    "softmax": {},
    "sigmoid": {"scoring": "sigmoid"},
    "bias": {"bias": True},
    "correction": {"scoring": "sigmoid", "score_correction_bias": True},
    "groups": {"n_group": 4, "topk_group": 2},
    "groups by two": {"n_group": 6, "topk_group": 2, "group_score_experts": 2},
    "normalized": {"norm_topk_prob": True},
    "scaled": {"scale": 2.5, "expert_scale": True},
    "normed input": {"input_norm": Norm(1e-3)},
    "all": {"top_k": EXPERTS},
    "one by one": {"scoring": "sparsemixer", "jitter": 0.1, "top_k": 3, "bias": True},
}


def module(**fields: Any) -> RouterModule:
    router, chooser = replace(ROUTER, **fields), torch.Generator().manual_seed(1)

    def numbers(*shape: int) -> Tensor:
        return torch.randn(shape, generator=chooser)

    vectors = {
        "weight": numbers(EXPERTS, HIDDEN) * 0.3,
        "bias": numbers(EXPERTS) if router.bias else None,
        "correction": numbers(EXPERTS) * 0.2 if router.score_correction_bias else None,
        "expert_scale": 1 + numbers(EXPERTS) * 0.2 if router.expert_scale else None,
    }
    if router.input_norm is not None:
        vectors["input_norm"] = 5 * numbers(HIDDEN)
    known = {f"ffn.router.{name}": each for name, each in vectors.items() if each is not None}
    return RouterModule(router, ModelWeights({}, known))


def table(weights: Tensor, indices: Tensor) -> Tensor:
    """The weight of every expert, (N, E): the order of those chosen does not count."""
    return torch.zeros(len(weights), EXPERTS).scatter_(1, indices, weights.contiguous())


@pytest.mark.parametrize("tokens", [1, 17, 300])
@pytest.mark.parametrize("fields", ROUTERS.values(), ids=ROUTERS)
def test_the_choice_of_torch(library: NativeLibrary, fields: dict[str, Any], tokens: int) -> None:
    router = module(**fields)
    x = torch.randn(tokens, HIDDEN, generator=torch.Generator().manual_seed(tokens))
    ours = table(*router(x))
    with patch.object(elementwise, "library_for", lambda x: None):
        expected = table(*router(x))
    assert torch.equal(ours != 0, expected != 0)
    torch.testing.assert_close(ours, expected, rtol=2e-5, atol=1e-7)


@pytest.mark.parametrize("broken", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("fields", ROUTERS.values(), ids=ROUTERS)
def test_broken_scores_choose_different_experts_that_exist(
    library: NativeLibrary, fields: dict[str, Any], broken: float
) -> None:
    router = module(**fields)
    x = torch.randn(3, HIDDEN)
    x[1], x[2, 0] = broken, broken
    indices = router(x)[1]
    assert indices.min() >= 0
    assert indices.max() < EXPERTS
    assert all(len({*row}) == len(row) for row in indices.tolist())


def test_equal_scores_choose_the_first_experts(library: NativeLibrary) -> None:
    weights, indices = module()(torch.zeros(2, HIDDEN))
    assert indices.tolist() == [[0, 1, 2, 3, 4]] * 2
    torch.testing.assert_close(weights, torch.full((2, TOP_K), 1 / EXPERTS))
