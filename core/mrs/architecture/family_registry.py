"""Look up families of text models by the names that containers use."""

from __future__ import annotations

import pkgutil
from difflib import get_close_matches
from functools import cache
from importlib import import_module

from mrs.architecture.family import Family, squeezed
from mrs.errors import Unsupported

#: How many families an error suggests.
MOST_NAMED = 5


@cache
def families() -> dict[str, Family]:
    """Every text family by its name: the `FAMILY` of each module in `mrs.families`."""
    found = [_family_in(module) for module in _modules()]
    return {family.name: family for family in sorted(found, key=lambda f: f.name)}


@cache
def _modules() -> tuple[str, ...]:
    package = import_module("mrs.families")
    return tuple(m.name for m in pkgutil.iter_modules(package.__path__) if not m.ispkg)


def _family_in(module: str) -> Family:
    family: Family = import_module(f"mrs.families.{module}").FAMILY
    return family


def family_by_name(name: str) -> Family:
    """The family of a `model_type` or `--arch` name; Unsupported if there is none."""
    wanted = squeezed(name)
    for module in _modules():  # most families are alone in a module of their name
        if squeezed(module) == wanted:
            return _family_in(module)
    for family in families().values():
        if wanted in map(squeezed, (family.name, *family.aliases)):
            return family
    raise _unknown(name)


def family_by_gguf_arch(arch: str) -> Family:
    """The family of a GGUF file's `general.architecture`; Unsupported if there is none."""
    for family in families().values():
        if arch in (family.gguf_arch, *family.other_gguf_archs):
            return family
    raise _unknown(arch)


def _unknown(name: str) -> Unsupported:
    alike = get_close_matches(name.lower().replace("-", "_"), families(), n=MOST_NAMED, cutoff=0)
    return Unsupported(
        f"the architecture {name!r} is not known",
        hint=f"the README lists all; the most similar names are {', '.join(alike)}",
    )
