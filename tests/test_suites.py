"""What the core suite leaves out is no value and no pair of values."""

from __future__ import annotations

from itertools import combinations, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

import faults
from support.suites import _is_there, covering, examples, first, kinds, leave_out, mark_full

ROWS = list(product(range(11), "abcdef", (True, False), ("x", "y", "z")))


@pytest.mark.parametrize("strength", [1, 2, 3])
def test_all_values_of_so_many_parameters_stay_together(strength: int) -> None:
    chosen = covering(ROWS, strength)
    for columns in combinations(range(4), strength):
        kept = {tuple(ROWS[row][column] for column in columns) for row in chosen}
        assert kept == {tuple(row[column] for column in columns) for row in ROWS}
    least = {1: 11, 2: 11 * 6, 3: 11 * 6 * 3}[strength]
    assert least <= len(chosen) <= 1.5 * least


def test_pairs_that_the_product_does_not_have_are_not_asked_for() -> None:
    rows = [(1, 1, "a"), (2, 2, "a"), (1, 1, "b"), (2, 2, "b")]
    assert covering(rows, 2) == set(range(4))


class Case(NamedTuple):
    family: str
    id: str


CASES = [Case(family, f"{family}-{name}") for family in ("llama", "phi") for name in ("a", "b")]


class FakeItem:
    """What the room reads of a test."""

    def __init__(
        self, nodeid: str, parameters: dict[str, Any], *marks: pytest.Mark, folder: str = "engine"
    ) -> None:
        self.nodeid, self.path = nodeid, SimpleNamespace(parent=SimpleNamespace(name=folder))
        self.callspec = SimpleNamespace(params=parameters)
        self.fixturenames: list[str] = []
        self.marks = list(marks)

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return next(self.iter_markers(name), None)

    def iter_markers(self, name: str | None = None) -> Any:
        return (mark for mark in self.marks if name in (None, mark.name))

    def add_marker(self, mark: pytest.MarkDecorator) -> None:
        self.marks.append(mark.mark)

    @property
    def is_full(self) -> bool:
        return self.get_closest_marker("full") is not None


def of_families(*marks: pytest.Mark) -> list[FakeItem]:
    parameters = kinds(CASES, ["phi-b"])
    return [
        FakeItem(f"test[{each.id}]", {"case": each}, *(m.mark for m in each.marks), *marks)
        for each in parameters
    ]


def test_core_has_each_kind_and_where_asked_each_family() -> None:
    items = of_families()
    mark_full(items)  # type: ignore[arg-type]
    assert [item.is_full for item in items] == [True, True, True, False]
    items = of_families(pytest.mark.each_family.mark)
    mark_full(items)  # type: ignore[arg-type]
    assert [item.is_full for item in items] == [False, True, False, False]


def test_tests_of_other_folders_are_core_unless_they_say_otherwise() -> None:
    plain = [FakeItem("test", dict(zip("abcd", row, strict=True))) for row in ROWS]
    mark_full(plain)  # type: ignore[arg-type]
    assert not any(item.is_full for item in plain)
    marked = [
        FakeItem("test", dict(zip("abcd", row, strict=True)), pytest.mark.pairs.mark)
        for row in ROWS
    ]
    mark_full(marked)  # type: ignore[arg-type]
    assert sum(not item.is_full for item in marked) < len(ROWS) / 3


@pytest.mark.parametrize(
    ("few", "core"),
    [((1,), "a"), ((2,), "ae"), ((3,), "ace"), ((9,), "abcde"), (("b", "d"), "bd")],
)
def test_few_cases_are_spread_evenly_or_named(few: tuple[int | str, ...], core: str) -> None:
    items = [FakeItem(f"test[{name}]", {"a": name}, pytest.mark.few(*few).mark) for name in "abcde"]
    mark_full(items)  # type: ignore[arg-type]
    assert [item.callspec.params["a"] for item in items if not item.is_full] == list(core)


def test_a_test_whose_named_cases_have_other_names_now_stays_whole() -> None:
    items = [FakeItem(f"test[{name}]", {"a": name}, pytest.mark.few("x").mark) for name in "ab"]
    mark_full(items)  # type: ignore[arg-type]
    assert not any(item.is_full for item in items)


def test_published_models_and_browsers_are_of_the_full_suite() -> None:
    fast = FakeItem("test", {}, folder="published")
    slow = FakeItem("test", {}, pytest.mark.slow.mark, folder="published")
    page = FakeItem("test", {})
    page.fixturenames = ["browser", "tmp_path"]
    mark_full([fast, slow, page])  # type: ignore[list-item]
    assert [fast.is_full, slow.is_full, page.is_full] == [True, False, True]


def test_what_is_full_anyway_stands_for_no_value() -> None:
    full = FakeItem("test", {"a": 1, "b": 1}, pytest.mark.values.mark, pytest.mark.full.mark)
    others = [
        FakeItem("test", {"a": a, "b": b}, pytest.mark.values.mark) for a, b in ((1, 2), (2, 1))
    ]
    mark_full([full, *others])  # type: ignore[list-item]
    assert [item.is_full for item in others] == [False, False]


def test_core_has_the_first_values_and_few_examples() -> None:
    assert [len(each.marks) for each in first(2, "abcd")] == [0, 0, 1, 1]
    (_, (few, many)) = examples(core=10, full=1000).args
    assert (few.values, many.values) == ((10,), (1000,))
    assert [mark.name for mark in many.marks] == ["full"]


def test_what_a_machine_lacks_is_counted_and_taken_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    _is_there.cache_clear()
    needs_one = FakeItem("test", {}, pytest.mark.needs("a CUDA device").mark)
    needs_two = FakeItem("test", {}, pytest.mark.needs("two CUDA devices").mark)
    items: list[Any] = [needs_one, needs_two]
    assert leave_out(items) == {"two CUDA devices": 1}
    assert items == [needs_one]
    _is_there.cache_clear()


def test_each_fault_is_in_a_text_that_exists() -> None:
    """`tests/faults.py` is run by hand."""
    root = Path(faults.__file__).parent
    for fault in faults.FAULTS:
        text = (faults.ROOT / faults.PACKAGE / fault.file).read_text(encoding="utf-8")
        assert text.count(fault.right) == 1, fault.part
        assert (root / fault.tests).exists(), fault.part
