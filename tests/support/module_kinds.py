"""All kinds of mixers and feed-forward modules of decoders and encoders."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from inspect import isabstract

from mrs.architecture import mixers
from mrs.architecture.mixers.mixer import Module


def module_kinds() -> set[type[Module]]:
    """The classes of specs that name their code; others are parts of vision towers."""
    files = [
        import_module(f"{mixers.__name__}.{file.name}")
        for file in pkgutil.iter_modules(mixers.__path__)
    ]
    classes = {each for file in files for each in vars(file).values() if isinstance(each, type)}
    return {
        each
        for each in classes
        if issubclass(each, Module) and not isabstract(each) and hasattr(each, "code")
    }
