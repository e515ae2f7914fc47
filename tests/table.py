"""Write which family passes which check, as the Markdown tables of `tests/families.md`.

Run as `python tests/table.py`, with `--slow` to also compare with llama.cpp. It runs the
tests and fills a cell from those that carry the column's mark.
"""

from __future__ import annotations

import contextlib
import io
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest

_WORDS = {"passed": "yes", "failed": "**no**"}
HEADING = """# What the tests check of each family

`python tests/table.py --slow` writes this file.

"""
#: What is run for each table.
TESTS = (("families", "distributed/test_families.py"), ("vision",), ("embeddings",))
Cells = dict[str, dict[str, set[str]]]


class Results:
    """A pytest plug-in: the outcomes of every test of a family, by column."""

    def __init__(self) -> None:
        self.cells: Cells = defaultdict(lambda: defaultdict(set))
        self.columns: list[str] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item):
        report = yield
        mark = item.get_closest_marker("table")
        family = _family(item)
        if mark is not None and family is not None and (report.failed or report.when == "call"):
            for column in mark.args:
                self.cells[family][column].add(report.outcome)
                if column not in self.columns:
                    self.columns.append(column)
        return report

    def markdown(self) -> str:
        rows = [["family", *self.columns], ["---"] * (len(self.columns) + 1)]
        for family, cells in sorted(self.cells.items()):
            rows.append([family, *(_cell(cells[column]) for column in self.columns)])
        return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _family(item: pytest.Item) -> str | None:
    values = item.callspec.params.values() if hasattr(item, "callspec") else ()
    case = getattr(getattr(item, "cls", None), "case", None)
    own = getattr(case, "family", getattr(getattr(item, "module", None), "FAMILY", None))
    return next((value.family for value in values if hasattr(value, "family")), own)


def _cell(outcomes: set[str]) -> str:
    outcomes = outcomes - {"skipped"}
    return _WORDS["failed" if "failed" in outcomes else "passed"] if outcomes else "-"


def main() -> int:
    here = Path(__file__).parent
    tables, codes = zip(*(make_table(here / name for name in each) for each in TESTS), strict=True)
    text = HEADING + "\n".join(tables)
    (here / "families.md").write_text(text, encoding="utf-8")
    print(text, end="")
    return max(codes)


def make_table(paths: Iterable[Path]) -> tuple[str, int]:
    """Run some tests: their table, and the exit code of pytest."""
    results = Results()
    chosen = ["-m", "" if "--slow" in sys.argv[1:] else "not slow"]
    log = io.StringIO()
    with contextlib.redirect_stdout(log):
        # In one process: a plug-in sees no outcomes of workers' tests.
        options = ["-q", "-n", "0", *chosen]
        code = pytest.main([*map(str, paths), *options], plugins=[results])
    if code:
        print(log.getvalue(), file=sys.stderr)
    return results.markdown() + "\n", int(code)


if __name__ == "__main__":
    raise SystemExit(main())
