"""With --json, errors are JSON objects on standard output, with the same exit code."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from mrs_runs import Ran

COMMANDS = [
    ("plan", "-m", "/no/such/model"),
    ("plan", "plain", "-m", "/no/such/model"),
    ("embed", "-m", "/no/such/model", "text"),
    ("rerank", "-m", "/no/such/model", "query", "text"),
    ("classify", "-m", "/no/such/model", "text"),
    ("bench", "-m", "/no/such/model"),
    ("tune", "-m", "/no/such/model"),
    ("quantize", "-m", "/no/such/model", "--isq", "q4k", "-o", "/tmp/never"),
    ("serve", "-m", "/no/such/model"),
    ("cache", "list", "--prefix-cache-dir", "/no/such/folder"),
    ("gguf", "-m", "/no/such/model"),
]


@pytest.mark.values
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("flag", ["--json", "--no-such-flag"])
def test_every_command_prints_its_error(
    run_mrs: Callable[..., Ran], command: tuple[str, ...], flag: str
) -> None:
    plain = run_mrs(*command, *([flag] if flag != "--json" else []))
    found = run_mrs(*command, flag, "--json") if flag != "--json" else run_mrs(*command, flag)
    assert found.code == plain.code
    if not plain.code:
        return
    error = json.loads(found.out.splitlines()[-1])["error"]
    assert error["exit_code"] == plain.code
    assert f"mrs: error: {error['message']}\n" in plain.err
    assert found.err == plain.err
    assert plain.out == ""


def test_an_error_has_its_parts(run_mrs: Callable[..., Ran]) -> None:
    error = json.loads(run_mrs("plan", "-m", "/no/such/model", "--json").out)["error"]
    assert error == {
        "message": "no such folder or file (/no/such/model): check the path",
        "what": "no such folder or file",
        "where": "/no/such/model",
        "hint": "check the path",
        "exit_code": 3,
    }


def test_a_command_of_the_chat_that_fails_has_its_own_line(run_mrs: Callable[..., Ran]) -> None:
    """So the lines of the output are in the order of the prompts."""
    ran = run_mrs("-i", "plain", "-m", "x", "--json", stdin="hello\n\\load /no/such\nworld\n")
    lines = [json.loads(line) for line in ran.out.splitlines()]
    assert ["error" in line for line in lines] == [False, True, False]
