"""The size of a value as JSON is that which `json.dumps` has, whatever is in it."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import pytest

from mrs.process.json_size import json_characters

LARGE = {"a": [[[1]], "é\n\u2028", {"b": None}, 1.5, True] * 20_000}


@pytest.mark.parametrize("value", [None, {}, {"é": ["😀", 1.5e300, -0.0]}, 10**400, LARGE])
def test_the_size_is_that_of_the_json(value: Any) -> None:
    assert json_characters(value) == len(json.dumps(value))


@pytest.mark.parametrize("value", [datetime.now(), {"a": {1, 2}}, [object()] * 2**16])
def test_what_is_no_json_is_an_error(value: Any) -> None:
    if isinstance(value, datetime):
        value = {"a": [value] * 2**14}
    with pytest.raises(TypeError):
        json_characters(value)


def test_a_large_value_is_written_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call of `json.dumps` keeps the interpreter until it returns."""
    size = len(json.dumps(LARGE))
    monkeypatch.delattr(json, "dumps")
    assert json_characters(LARGE) == size
