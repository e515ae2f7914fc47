"""The delta rule with a decay of each channel, on each CPU path, against it in float64."""

from __future__ import annotations

import pytest
import torch
from test_steps import assert_near, normal
from torch import Tensor

from mrs.kernels.channel_delta_rule import channel_delta_rule
from mrs.kernels.cpu.library import NativeLibrary
from mrs.kernels.delta_rule import l2_normalize
from mrs.kernels.workspace.channel_delta_rule import native_bytes


def inputs_of(tokens: int, strength: float, keys: int, values: int) -> list[Tensor]:
    q, k = (l2_normalize(normal(tokens, 3, keys, seed=n)) for n in range(2))
    log_decay = -strength * normal(tokens, 3, keys, seed=4).abs()
    return [q, k, normal(tokens, 3, values, seed=2), log_decay, normal(tokens, 3, seed=5).sigmoid()]


@pytest.mark.parametrize("tokens", [1, 15, 16, 40])
@pytest.mark.parametrize("strength", [0.1, 5.0, 60.0])
@pytest.mark.parametrize("sizes", [(24, 20), (30, 40)], ids=str)
@pytest.mark.usefixtures("any_path")
def test_tokens_in_order(tokens: int, strength: float, sizes: tuple[int, int]) -> None:
    """Also where a channel forgets everything at once, in two chunks of tokens that go on."""
    inputs, half = inputs_of(tokens, strength, *sizes), tokens // 2
    q, k, v, log_decay, beta = inputs
    state = normal(3, *sizes, seed=3)
    expected, exact = [], state.double()
    for t in range(tokens):
        exact = exact * log_decay[t].double().exp()[:, :, None]
        wrong = v[t].double() - torch.einsum("hd,hdv->hv", k[t].double(), exact)
        exact = exact + torch.einsum("hd,hv->hdv", k[t].double() * beta[t, :, None], wrong)
        expected.append(torch.einsum("hd,hdv->hv", q[t].double(), exact))
    outs = [
        channel_delta_rule(*(x[rows] for x in inputs), state)
        for rows in (slice(half), slice(half, tokens))
    ]
    for out, wanted in zip(torch.cat(outs), expected, strict=True):
        assert_near(out, wanted, 1e-5)
    assert_near(state, exact, 1e-5)


def test_halves_are_the_whole_to_the_bit(library: NativeLibrary) -> None:
    inputs = inputs_of(40, 1.0, 30, 40)
    state, halved = torch.zeros(2, 3, 30, 40)
    whole = channel_delta_rule(*inputs, state)
    halves = [
        channel_delta_rule(*(x[rows] for x in inputs), halved) for rows in (slice(7), slice(7, 40))
    ]
    assert torch.equal(torch.cat(halves), whole)
    assert torch.equal(halved, state)
    library.functions.mrs_scratch_peak()
    channel_delta_rule(*inputs, state)
    assert library.functions.mrs_scratch_peak() == native_bytes(1, 30)
