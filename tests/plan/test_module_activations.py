"""Every spec of a module has a function that counts its activations, found by its class's name."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from inspect import isabstract
from operator import attrgetter
from typing import get_type_hints

import pytest

from mrs import layers
from mrs.layers.mixer import FeedForward, Mixer
from mrs.plan.memory.module_activations import EMPTY, FUNCTIONS, IN_TOWERS, function_of


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_function_takes_the_spec_of_that_name(name: str) -> None:
    specs = _specs()
    hints = get_type_hints(function_of(name), localns=specs)
    assert issubclass(specs[name], next(iter(hints.values())))


def test_each_spec_of_a_module_has_a_function() -> None:
    modules = {
        name
        for name, spec in _specs().items()
        if issubclass(spec, Mixer | FeedForward) and not isabstract(spec)
    }
    assert modules - EMPTY - IN_TOWERS <= set(FUNCTIONS)


def test_a_spec_without_a_function_is_an_error() -> None:
    with pytest.raises(TypeError, match="Router"):
        function_of("Router")


def _specs() -> dict[str, type]:
    """The classes of specs by their names."""
    found: dict[str, type] = {}
    for file in filter(attrgetter("ispkg"), pkgutil.iter_modules(layers.__path__)):
        module = import_module(f"{layers.__name__}.{file.name}.spec")
        found |= {name: each for name, each in vars(module).items() if isinstance(each, type)}
    return found
