"""What the plan says of fused mixers with states is what their kernels allocate, to the byte."""

from __future__ import annotations

import pytest
import torch

from mrs.engine.profile.peak_memory import peak_bytes
from mrs.formats import FORMATS
from mrs.kernels.cpu.library import native_library
from mrs.kernels.cpu.library_file import is_available
from mrs.plan.memory.activations.module_activations import module_bytes
from mrs.plan.memory.forward_pass import ForwardShape
from mrs.sizes.fused_workspace import FEW_TOKENS
from mrs.storage import Storage
from support.state_mixers import HIDDEN, MIXERS, batch_of, normal, state_cache, state_module

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.skipif(not is_available(), reason="no native kernels"),
]


def kept(slot: str) -> Storage:
    """All matrices of `state_module` are stored like that."""
    return Storage(FORMATS["Q8_0"], 0, "packed")


@pytest.mark.parametrize("tokens", [1, FEW_TOKENS])
@pytest.mark.parametrize("kind", MIXERS)
def test_one_call(kind: str, tokens: int) -> None:
    module, x = state_module(kind), normal(tokens, HIDDEN, seed=1)
    batch, caches = batch_of(tokens), [state_cache(kind, 1)]
    module(x, batch, caches)
    f32, library = FORMATS["F32"], native_library()
    assert library is not None
    shape = ForwardShape(tokens, tokens, tokens, f32, f32, 1, library.path)
    taken = peak_bytes(lambda: module(x, batch, caches), torch.device("cpu"))
    assert taken == module_bytes(MIXERS[kind], shape, HIDDEN, kept)
