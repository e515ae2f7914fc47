"""The delta rule with a decay of each channel, against the rule itself in float64."""

from __future__ import annotations

import pytest
import torch
from test_steps import assert_near, normal

from mrs.kernels.channel_delta_rule import channel_delta_rule
from mrs.kernels.delta_rule import l2_normalize


@pytest.mark.parametrize("tokens", [1, 15, 16, 40])
@pytest.mark.parametrize("strength", [0.1, 5.0, 60.0])
def test_tokens_in_order(tokens: int, strength: float) -> None:
    """Also where a channel forgets everything at once, in two chunks of tokens that go on."""
    q, k = (l2_normalize(normal(tokens, 3, 24, seed=n)) for n in range(2))
    v, state = normal(tokens, 3, 20, seed=2), normal(3, 24, 20, seed=3)
    log_decay = -strength * normal(tokens, 3, 24, seed=4).abs()
    beta = normal(tokens, 3, seed=5).sigmoid()
    expected, exact = [], state.double()
    for t in range(tokens):
        exact = exact * log_decay[t].double().exp()[:, :, None]
        wrong = v[t].double() - torch.einsum("hd,hdv->hv", k[t].double(), exact)
        exact = exact + torch.einsum("hd,hv->hdv", k[t].double() * beta[t, :, None], wrong)
        expected.append(torch.einsum("hd,hdv->hv", q[t].double(), exact))
    inputs, half = (q, k, v, log_decay, beta), tokens // 2
    outs = [
        channel_delta_rule(*(x[rows] for x in inputs), state)
        for rows in (slice(half), slice(half, tokens))
    ]
    for out, wanted in zip(torch.cat(outs), expected, strict=True):
        assert_near(out, wanted, 1e-5)
    assert_near(state, exact, 1e-5)
