"""The gated delta rule on each CPU path against the rule itself in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mrs.kernels.delta_rule import gated_delta_rule, l2_normalize

HEADS = 3
SIZES = ((8, 5), (30, 40), (128, 64))  # of keys and values


def inputs(tokens: int, decay: float, keys: int = 8, values: int = 5) -> list[Tensor]:
    torch.manual_seed(tokens)
    q, k = l2_normalize(torch.randn(2, tokens, HEADS, keys))
    v = torch.randn(tokens, HEADS, values)
    log_decay = -decay * torch.rand(tokens, HEADS)
    return [q, k, v, log_decay, torch.rand(tokens, HEADS)]


def token_by_token(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, state: Tensor
) -> Tensor:
    q, k, v, log_decay, beta = (t.double() for t in (q, k, v, log_decay, beta))
    outs = []
    for token in range(len(q)):
        state *= log_decay[token].exp()[:, None, None]
        read = torch.einsum("hd,hdv->hv", k[token], state)
        change = beta[token][:, None] * (v[token] - read)
        state += torch.einsum("hd,hv->hdv", k[token], change)
        outs.append(torch.einsum("hd,hdv->hv", q[token], state))
    return torch.stack(outs)


@pytest.mark.parametrize("tokens", [1, 63, 64, 65, 150])
@pytest.mark.parametrize("decay", [0.0, 0.5, 30.0])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.usefixtures("any_path")
def test_the_rule_itself(tokens: int, decay: float, sizes: tuple[int, int]) -> None:
    given = inputs(tokens, decay, *sizes)
    state = torch.randn(HEADS, *sizes)
    exact_state = state.double()
    expected = token_by_token(*given, exact_state)
    ours = gated_delta_rule(*given, state)
    torch.testing.assert_close(ours.double(), expected, atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(state.double(), exact_state, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("tiled", [False, True])
@pytest.mark.usefixtures("any_path")
def test_heads_that_share_keys(tiled: bool) -> None:
    """Adjacent ones, or those that are as far apart as there are keys."""
    q, k, v, log_decay, beta = inputs(70, 0.5)
    heads = [x.repeat_interleave(2, dim=1) for x in (v, log_decay, beta)]
    of_head = [0, 1, 2, 0, 1, 2] if tiled else [0, 0, 1, 1, 2, 2]
    state, exact = torch.zeros(2, 2 * HEADS, *SIZES[0])
    expected = gated_delta_rule(q[:, of_head], k[:, of_head], *heads, exact)
    assert torch.equal(gated_delta_rule(q, k, *heads, state, tiled=tiled), expected)
    assert torch.equal(state, exact)


def test_two_halves_are_the_whole(any_path: str) -> None:
    given = inputs(100, 0.5)
    state, halved = torch.zeros(2, HEADS, *SIZES[0])
    whole = gated_delta_rule(*given, state)
    parts = [
        gated_delta_rule(*(t[span] for t in given), halved) for span in (slice(37), slice(37, None))
    ]
    torch.testing.assert_close(torch.cat(parts), whole)
    torch.testing.assert_close(halved, state)
    if any_path != "torch":
        assert torch.equal(torch.cat(parts), whole)
        assert torch.equal(halved, state)
