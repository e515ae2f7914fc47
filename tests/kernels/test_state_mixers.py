"""Mixers with states in one native call against the same steps one after another, to the bit."""

from __future__ import annotations

import pytest
import torch

from mrs.kernels.cpu.library import NativeLibrary
from mrs.sizes.fused_workspace import FEW_TOKENS
from support.state_mixers import HIDDEN, MIXERS, batch_of, normal, state_cache, state_module


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("lengths", [(1,), (FEW_TOKENS,), (1, 1, 1), (2, 5, 1)], ids=str)
@pytest.mark.parametrize("kind", MIXERS)
def test_one_call(
    library: NativeLibrary, kind: str, lengths: tuple[int, ...], threads: int
) -> None:
    torch.set_num_threads(threads)
    module = state_module(kind)
    fused = module.fused
    assert fused is not None
    x = normal(sum(lengths), HIDDEN, seed=1)
    caches, same = ([state_cache(kind, n) for n in range(len(lengths))] for _ in range(2))
    before = x.clone()
    assert fused.supports(x)
    out = module(x, batch_of(*lengths), caches)
    assert torch.equal(x, before)
    module.fused = None
    assert torch.equal(out, module(x, batch_of(*lengths), same))
    for one, other in zip(caches, same, strict=True):
        for ours, expected in zip(one.tensors, other.tensors, strict=True):
            assert torch.equal(ours, expected)


@pytest.mark.parametrize("kind", MIXERS)
def test_few_tokens_in_float32(library: NativeLibrary, kind: str) -> None:
    fused = state_module(kind).fused
    assert fused is not None
    assert not fused.supports(normal(FEW_TOKENS + 1, HIDDEN, seed=1))
    assert not fused.supports(normal(1, HIDDEN, seed=1).bfloat16())
