"""Which tests are the core suite, which are the full one, and which this machine cannot run.

A test is core unless this room marks it `full`:

- `@pytest.mark.pairs`: of the product of its parameters, core has cases with every pair of values
  of any two. All tests of `kernels/` are so. `@pytest.mark.values`: with every value of each.
- `kinds(cases)` makes parameters of the configurations of families: core has one of each kind of
  layer and, in tests marked `each_family`, one of each family.
- `@pytest.mark.few(8)`: of the cases that core would have, it has so many, spread evenly;
  `@pytest.mark.few("id", …)`: those with these ids.
- `suite_of` gives marks to the values of a parameter by name, `first` by their place, and
  `examples` says how many random examples each suite tries.
- `@pytest.mark.full`: what takes long and guards what a shorter test guards, too. All tests of
  `published/`, and those in a browser, are so.

What `@pytest.mark.needs(thing)` asks for and is not there is not collected: one line at the end
counts it.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Sequence
from functools import cache, partial
from importlib.util import find_spec
from itertools import combinations
from typing import Any, NamedTuple

import pytest

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
#: What a fixture needs, and with it every test that asks for it.
NEEDED_BY_FIXTURES = {"browser": "a browser"}
#: Whose every test of several parameters is cut to pairs.
BY_PAIRS = ("kernels",)
#: Whose tests are all of the full suite: they run models as they are published.
FULL_FOLDERS = ("published",)
#: Marks, and of how many parameters core has all values together.
STRENGTHS = {"values": 1, "pairs": 2}


def _is_installed(program: str) -> bool:
    return shutil.which(program) is not None


class Thing(NamedTuple):
    """What some tests need: whether it is there, and how to run them."""

    is_there: Callable[[], bool]
    cure: str


THINGS = {
    "a CUDA device": Thing(lambda: _num_cuda_devices() > 0, "python -m pytest -m needs, on a GPU"),
    "two CUDA devices": Thing(
        lambda: _num_cuda_devices() > 1, "python -m pytest -m needs, on two GPUs"
    ),
    "Triton": Thing(lambda: find_spec("triton") is not None, "torch's CUDA builds bring it"),
    "NVRTC": Thing(
        lambda: _can_compile_for_gpus(), "pip install nvidia-cuda-nvrtc nvidia-cuda-nvdisasm"
    ),
    "FlashInfer": Thing(
        lambda: find_spec("flashinfer") is not None, "pip install flashinfer-python"
    ),
    **{
        shell: Thing(partial(_is_installed, shell), f"install {shell}")
        for shell in ("bash", "zsh", "fish")
    },
    "peft": Thing(lambda: find_spec("peft") is not None, "pip install --no-deps peft accelerate"),
    "llama_cpp": Thing(lambda: find_spec("llama_cpp") is not None, "pip install llama-cpp-python"),
    "a browser": Thing(lambda: any(map(shutil.which, BROWSERS)), f"install {BROWSERS[0]}"),
}


def _num_cuda_devices() -> int:
    import torch

    return torch.cuda.device_count()


def _can_compile_for_gpus() -> bool:
    from mrs.kernels.cuda.nvrtc import nvrtc
    from support.sass import disassembler

    return nvrtc() is not None and disassembler() is not None


def covering(rows: Sequence[Sequence[Hashable]], strength: int) -> set[int]:
    """Indices of few rows with all values that any row has of `strength` columns together."""
    groups = [set(combinations(enumerate(row), min(strength, len(row)))) for row in rows]
    missing, chosen = set().union(*groups), set()
    for least in range(max(map(len, groups)), 0, -1):
        for index, own in enumerate(groups):
            if len(own & missing) >= least:
                chosen.add(index)
                missing -= own
    return chosen


def kinds(cases: Iterable[Any], representatives: Iterable[str]) -> list[Any]:
    """Parameters of tests, one a configuration; all but a family's first are only `further`.

    `representatives` are ids of configurations, one of each kind of layer.
    """
    chosen, seen, made = set(representatives), set(), []
    for case in cases:
        rank = "family" if case.family not in seen else "further"
        seen.add(case.family)
        marks = () if case.id in chosen else pytest.mark.configuration(rank)
        made.append(pytest.param(case, id=case.id, marks=marks))
    return made


def suite_of(value: Any, core: Container[Any], full: Container[Any] | None = None) -> Any:
    """Marks of a value of a parameter: only some are core, and some (or all) others full."""
    if value in core:
        return ()
    return pytest.mark.full if full is None or value in full else pytest.mark.slow


def first(count: int, values: Iterable[Any]) -> list[Any]:
    """Values of a parameter, of which core has the first ones."""
    return [
        pytest.param(value, marks=() if index < count else pytest.mark.full)
        for index, value in enumerate(values)
    ]


def examples(core: int, full: int) -> pytest.MarkDecorator:
    """A parameter of a test by examples: how many are tried."""
    return pytest.mark.parametrize("num_examples", first(1, (core, full)))


def mark_full(items: Sequence[pytest.Item]) -> None:
    """Mark all tests that are not core, but those that only `-m slow` runs."""
    functions: dict[tuple[str, int], list[tuple[pytest.Item, list[str]]]] = {}
    thinned: dict[str, list[tuple[pytest.Item, Any]]] = {}
    for item in items:
        marks = {mark.name: mark for mark in item.iter_markers()}
        if _is_large(item) and "slow" not in marks:
            item.add_marker(pytest.mark.full)
            continue
        if not marks.keys().isdisjoint(("full", "slow")):
            continue
        rank, strength = marks.get("configuration"), _strength(item, marks)
        if rank and not (rank.args == ("family",) and "each_family" in marks):
            item.add_marker(pytest.mark.full)
            continue
        if few := marks.get("few"):
            thinned.setdefault(_function(item), []).append((item, few.args))
        if strength and len(values := _values(item)) > strength:
            cases = functions.setdefault((_function(item), strength), [])
            cases.append((item, values))
    for (_, strength), cases in functions.items():
        _mark_others(cases, covering([values for _, values in cases], strength))
    for cases in thinned.values():
        left = [case for case in cases if case[0].get_closest_marker("full") is None]
        _mark_others(left, _few([_id(item) for item, _ in left], left[0][1]))


def _mark_others(cases: Sequence[tuple[pytest.Item, Any]], core: Container[int]) -> None:
    for index, (item, _) in enumerate(cases):
        if index not in core:
            item.add_marker(pytest.mark.full)


def _few(ids: Sequence[str], wanted: Sequence[int | str]) -> Container[int]:
    """Indices of so many cases, spread evenly, or of those with the wanted ids; all if none has."""
    match wanted:
        case [int(count)]:
            return {index * (len(ids) - 1) // max(1, count - 1) for index in range(count)}
        case _:
            return {i for i, name in enumerate(ids) if name in wanted} or range(len(ids))


def _is_large(item: pytest.Item) -> bool:
    """Whether a test runs a published model or a browser."""
    fixtures = getattr(item, "fixturenames", ())
    return item.path.parent.name in FULL_FOLDERS or any(map(NEEDED_BY_FIXTURES.get, fixtures))


def _strength(item: pytest.Item, marks: Container[str]) -> int | None:
    """Of how many parameters together core has all values; None for the whole product."""
    marked = (value for name, value in STRENGTHS.items() if name in marks)
    return next(marked, STRENGTHS["pairs"] if item.path.parent.name in BY_PAIRS else None)


def _function(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


def _id(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[2].removesuffix("]")


def _values(item: pytest.Item) -> list[str]:
    """The value of each parameter, in one order for all cases of a test."""
    spec = getattr(item, "callspec", None)
    return [repr(value) for _, value in sorted(spec.params.items())] if spec else []


def _needed(item: pytest.Item) -> Iterator[str]:
    for mark in item.iter_markers("needs"):
        yield from mark.args
    for fixture in getattr(item, "fixturenames", ()):
        if fixture in NEEDED_BY_FIXTURES:
            yield NEEDED_BY_FIXTURES[fixture]


def leave_out(items: list[pytest.Item]) -> Counter[str]:
    """Take out what this machine cannot run: how many tests need each thing that is not there."""
    counts: Counter[str] = Counter()
    kept = []
    for item in items:
        missing = [name for name in _needed(item) if not _is_there(name)]
        counts.update(missing[-1:])
        if not missing:
            kept.append(item)
    items[:] = kept
    return counts


@cache
def _is_there(name: str) -> bool:
    return THINGS[name].is_there()
