"""A state can be taken out, put back and reset, and is honest about what is lost."""

from __future__ import annotations

import pytest
import torch

from mrs.cache.layer_cache import LayerCache
from mrs.cache.recurrent_state import RecurrentStateCache
from mrs.kernels.causal_convolution import causal_convolution

CPU = torch.device("cpu")


def recurrent() -> RecurrentStateCache:
    return RecurrentStateCache((2, 3), (4,), device=CPU)


def advanced(cache: RecurrentStateCache, tokens: int) -> RecurrentStateCache:
    for tensor in cache.tensors:
        tensor += tokens
    cache.advance(tokens)
    return cache


def test_it_keeps_its_contract() -> None:
    cache = recurrent()
    assert isinstance(cache, LayerCache)
    assert cache.nbytes == 4 * (6 + 4)


def test_a_snapshot_stays_when_the_state_moves_on() -> None:
    cache = advanced(recurrent(), 3)
    saved = cache.export(0, 3)
    assert saved is not None
    advanced(cache, 4)
    assert cache.length == 7
    assert cache.export(0, 6) is None
    cache.restore(3, [None, saved])
    advanced(cache, 1)
    assert cache.length == 4
    assert all(bool((tensor == 4).all()) for tensor in cache.tensors)
    assert all(bool((tensor == 3).all()) for tensor in saved.tensors.values())


def test_only_the_beginning_can_be_had_again() -> None:
    cache = advanced(recurrent(), 5)
    for lost in (1, 4, 6, -1):
        assert not cache.can_rewind_to(lost)
        with pytest.raises(ValueError, match=f"cannot rewind 5 tokens to {lost}"):
            cache.rewind(lost)
    cache.rewind(5)
    assert bool((cache.tensors[0] == 5).all())
    cache.rewind(0)
    assert cache.length == 0
    assert not any(bool(tensor.any()) for tensor in cache.tensors)


def test_a_layer_without_a_state_goes_back_to_a_mark_as_well() -> None:
    """Layers of experts or an MLP alone have none (Nemotron-H)."""
    cache = advanced(RecurrentStateCache(device=CPU), 5)
    cache.mark()
    advanced(cache, 3)
    cache.rewind(5)
    assert cache.length == 5
    assert not cache.can_rewind_to(4)


def test_a_marked_state_can_be_had_again_once() -> None:
    cache = advanced(recurrent(), 5)
    cache.mark()
    advanced(cache, 2)
    cache.rewind(5)
    assert cache.length == 5
    assert all(bool((tensor == 5).all()) for tensor in cache.tensors)
    assert not advanced(cache, 1).can_rewind_to(5)


@pytest.mark.parametrize("taps", [1, 3, 4])
@pytest.mark.parametrize("chunks", [[9], [1] * 9, [4, 2, 3]])
def test_a_convolution_in_chunks_is_torchs_of_the_whole(taps: int, chunks: list[int]) -> None:
    torch.manual_seed(0)
    x, weight, bias = torch.randn(9, 5), torch.randn(5, taps), torch.randn(5)
    padded = torch.nn.functional.pad(x.T, (taps - 1, 0))[None]
    expected = torch.nn.functional.conv1d(padded, weight[:, None], bias, groups=5)[0].T
    state = torch.zeros(5, taps - 1)
    parts = [causal_convolution([part], state, weight, bias)[0] for part in x.split(chunks)]
    torch.testing.assert_close(torch.cat(parts), expected)
    assert torch.equal(state, x.T[:, 9 - (taps - 1) :])
