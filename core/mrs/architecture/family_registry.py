"""Look up families of text models by the names that containers use."""

from __future__ import annotations

import pkgutil
from collections.abc import Collection
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
    unsorted = [_family_in(module) for module in _modules()]
    return {family.name: family for family in sorted(unsorted, key=lambda f: f.name)}


@cache
def _modules() -> tuple[str, ...]:
    package = import_module("mrs.families")
    return tuple(m.name for m in pkgutil.iter_modules(package.__path__) if not m.ispkg)


def _family_in(module: str) -> Family:
    family: Family = import_module(f"mrs.families.{module}").FAMILY
    return family


class UnknownFamily(Unsupported):
    """No text family has the `name`."""

    name = ""


def family_by_name(name: str) -> Family:
    """The family of a `model_type` or `--arch` name; UnknownFamily if there is none."""
    wanted = squeezed(name)
    for module in _modules():  # most families are alone in a module of their name
        if squeezed(module) == wanted:
            return _family_in(module)
    for family in families().values():
        if wanted in map(squeezed, (family.name, *family.aliases)):
            return family
    raise _unknown(name, families())


def family_by_gguf_arch(arch: str) -> Family:
    """The family of a GGUF file's `general.architecture`; Unsupported if there is none."""
    for family in families().values():
        if arch in (family.gguf_arch, *family.other_gguf_archs):
            return family
    raise _unknown_gguf(arch)


def _unknown_gguf(arch: str) -> Unsupported:
    """The error for an unknown name; its hint has the right one if it is that of a family."""
    wanted, known = squeezed(arch), families().values()
    of_that_name = [f for f in known if wanted in map(squeezed, (f.name, *f.aliases))]
    if of_that_name and not any(family.gguf_arch for family in of_that_name):
        return Unsupported(
            f"no GGUF file has the architecture {arch!r}",
            hint="llama.cpp's converter writes such models as another one, most as llama: "
            "convert the model with it, or use its safetensors files",
        )
    named = [f for f in of_that_name if f.gguf_arch] or known
    names = [each for f in named for each in (f.gguf_arch, *f.other_gguf_archs) if each]
    return _unknown(arch, names)


def _unknown(name: str, known: Collection[str]) -> UnknownFamily:
    alike = get_close_matches(name.lower().replace("-", "_"), known, n=MOST_NAMED, cutoff=0)
    error = UnknownFamily(
        f"the architecture {name!r} is not known",
        hint=f"the manual lists all (man/models.md); the most similar names are {', '.join(alike)}",
    )
    error.name = name
    return error
