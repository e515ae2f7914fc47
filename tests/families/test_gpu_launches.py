"""The table of launches is that of the code."""

from __future__ import annotations

import pytest
from gpu_launches import KINDS, TABLE, lines_of

from support.suites import first


@pytest.mark.full
@pytest.mark.parametrize("special", first(2, list(KINDS)))
def test_the_table_is_that_of_the_code(special: str) -> None:
    table = TABLE.read_text(encoding="utf-8").splitlines(keepends=True)
    written = [line for line in table if line.startswith(f"| {special} |")]
    assert list(lines_of(special)) == written, "run tests/families/gpu_launches.py"
