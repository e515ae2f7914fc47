"""The causal convolution on each CPU path against torch's in float64."""

from __future__ import annotations

import pytest
import torch
from test_steps import assert_near, normal

from mrs.kernels.causal_convolution import causal_convolution
from mrs.kernels.native_limits import MAX_TAPS

TOKENS = 20


@pytest.mark.parametrize("taps", [1, 3, 4, MAX_TAPS, MAX_TAPS + 1])
@pytest.mark.parametrize("channels", [5, 64, 150])
@pytest.mark.parametrize("silu", [False, True])
@pytest.mark.parametrize("chunk_tokens", [1, 2, TOKENS])
@pytest.mark.usefixtures("any_path")
def test_chunks_are_the_whole(taps: int, channels: int, silu: bool, chunk_tokens: int) -> None:
    """Of columns of a wider tensor, in two parts, after earlier inputs."""
    inputs, weight = normal(TOKENS, channels + 30), normal(channels, taps, seed=1)
    x, bias = inputs[:, 7 : channels + 7], normal(channels, seed=2)
    state = normal(channels, taps - 1, seed=3)
    before = torch.cat((state, x.T), dim=1).double()
    expected = torch.nn.functional.conv1d(
        before[None], weight[:, None].double(), bias.double(), groups=channels
    )[0].T
    halves = [channels // 3, channels - channels // 3]
    parts = [
        torch.cat(causal_convolution(part.split(halves, 1), state, weight, bias, silu=silu), dim=1)
        for part in x.split(chunk_tokens)
    ]
    assert_near(torch.cat(parts), torch.nn.functional.silu(expected) if silu else expected)
    assert torch.equal(state.double(), before[:, TOKENS:])


@pytest.mark.usefixtures("library")
def test_threads_and_chunks_change_no_bit() -> None:
    """But torch, which rounds otherwise."""
    x, weight = normal(700, 80), normal(80, 4, seed=1)
    results = []
    for threads, chunk_tokens in ((1, 700), (2, 700), (2, 3)):
        torch.set_num_threads(threads)
        state = torch.zeros(80, 3)
        chunks = x.split(chunk_tokens)
        outs = [causal_convolution([c], state, weight, None, silu=True)[0] for c in chunks]
        results.append(torch.cat(outs))
    assert all(torch.equal(results[0], each) for each in results[1:])
