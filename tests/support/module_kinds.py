"""All kinds of mixers and feed-forward modules of decoders and encoders."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from inspect import isabstract

from mrs import layers
from mrs.layers.mixer import Module


def module_kinds() -> set[type[Module]]:
    """The classes of specs that name their code; others are parts of vision towers."""
    folders = (each.name for each in pkgutil.iter_modules(layers.__path__) if each.ispkg)
    files = [import_module(f"{layers.__name__}.{name}.spec") for name in folders]
    classes = {each for file in files for each in vars(file).values() if isinstance(each, type)}
    return {
        each
        for each in classes
        if issubclass(each, Module) and not isabstract(each) and hasattr(each, "code")
    }
