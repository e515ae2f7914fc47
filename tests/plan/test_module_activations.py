"""Every kind of module names code that exists, and takes its spec."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import get_type_hints

import pytest

from mrs.layers.empty.spec import NoFeedForward, NoMixer
from mrs.layers.latent_attention.spec import LatentAttention
from mrs.layers.mixer import CacheShape, Mixer, Module, loaded
from mrs.layers.short_convolution.spec import ShortConvolution
from mrs.model.model_weights import ModelWeights
from mrs.model.modules import build_mixer
from support.module_kinds import module_kinds

KINDS = sorted(module_kinds(), key=lambda kind: kind.__name__)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_the_named_code_takes_specs_of_the_kind(kind: type[Module]) -> None:
    code = kind.own_code()
    specs = {each.__name__: each for each in (*KINDS, Module)}
    assert code.activation_bytes or code.operations or kind in (NoMixer, NoFeedForward)
    if code.activation_bytes:
        first = next(iter(get_type_hints(loaded(code.activation_bytes), localns=specs).values()))
        assert issubclass(kind, first)
    if code.module:
        parameters = inspect.signature(loaded(code.module)).parameters
        kinds = str(next(iter(parameters.values())).annotation).split(" | ")
        assert any(issubclass(kind, specs[each]) for each in kinds)
        if issubclass(kind, Mixer):
            assert "rope" in parameters
    if code.operations:
        second = list(inspect.signature(loaded(code.operations)).parameters.values())[1]
        assert issubclass(kind, specs[str(second.annotation)])


def test_a_kind_without_code_of_its_own_is_an_error_even_below_one_that_has_some() -> None:
    @dataclass(frozen=True)
    class Other(LatentAttention):
        pass

    with pytest.raises(TypeError, match="Other names no `code`"):
        Other.own_code()
    assert ShortConvolution.own_code() is ShortConvolution.code


def test_a_mixer_that_caches_more_than_states_needs_a_module() -> None:
    class Keys(ShortConvolution):
        code = ShortConvolution.code

        @property
        def cache_shape(self) -> CacheShape:
            return CacheShape((8, 8))

    with pytest.raises(TypeError, match="Keys names no `module` that has its cache"):
        build_mixer(Keys(8, 3), ModelWeights({}, {}), None)
