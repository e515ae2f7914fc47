"""A layer of every family needs few calls of the native library."""

from __future__ import annotations

import pytest
from native_calls import TABLE, Calls, all_calls, table


@pytest.fixture(scope="module")
def calls() -> dict[Calls, list[str]]:
    return all_calls()


@pytest.mark.full
def test_the_table_is_that_of_the_code() -> None:
    assert TABLE.read_text(encoding="utf-8") == table(), "run tests/families/native_calls.py"


def test_a_layer_has_at_most_two_native_calls(calls: dict[Calls, list[str]]) -> None:
    assert all(each.native <= 2 for each in calls)


def test_plain_layers_are_one_native_call(calls: dict[Calls, list[str]]) -> None:
    for each, names in calls.items():
        if "odd heads" not in each.kind:
            assert (each.native, each.torch) == (1, ""), (each, names)
