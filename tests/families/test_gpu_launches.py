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


#: The most launches of a layer with any number of rows, of what has kernels for all of it.
MOST = {
    "dense, not quantized": 6,
    "dense": 6,
    "norms of heads": 6,
    "norms around modules, windows": 8,
    "sinks": 8,
    "mixtures": 8,
}


@pytest.mark.few(1)
@pytest.mark.parametrize("special", MOST)
def test_a_layer_has_few_launches(special: str) -> None:
    """In the table, which is that of today."""
    rows = [line for line in TABLE.read_text().splitlines() if line.startswith(f"| {special} |")]
    assert rows
    for row in rows:
        counts = [each.split(",")[0].split(" + ") for each in row.split(" | ")[3:7]]
        assert len(counts) == 4
        assert max(int(own) + int(torch.strip(" |")) for own, torch in counts) <= MOST[special]
