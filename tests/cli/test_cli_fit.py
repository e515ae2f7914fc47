"""`mrs fit` as people and programs see it."""

from __future__ import annotations

import io
import json

import pytest
from mrs_runs import Terminal

from mrs.errors import ExitCode
from mrs_cli.app import main
from mrs_cli.environment import Environment
from support.model_files import LLAMA_70B, write_headers


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_headers(tmp_path_factory.mktemp("fit") / "big", LLAMA_70B, 30))


def test_one_machine_has_a_row_for_each_format(run_mrs, model: str) -> None:
    ran = run_mrs("fit", "-m", model, "--on", "H100")
    head, *rows = ran.out.splitlines()[:8]
    assert head.split() == ["--isq", "weights", "context", "tokens/s", "first", "token", "loss"]
    assert [row.strip("\u2192 ").split()[0] for row in rows] == [
        *("none", "q8_0", "q6k", "q5k", "q4k", "q3k", "q2k")
    ]
    assert [row.split()[1] for row in rows if row.startswith("\u2192")] == ["q8_0"]
    assert "lacks" in rows[0]
    assert ran.code == ExitCode.DONE


def test_several_machines_have_a_row_each(run_mrs, model: str) -> None:
    machines = ("RTX 4090", "2x RTX 3090 + cpu=64GiB", "M2 Ultra 192GB")
    given = [word for machine in machines for word in ("--on", machine)]
    ran = run_mrs("fit", "-m", model, *given)
    lines = ran.out.splitlines()
    assert [line.split("  ")[0] for line in lines[:4]] == ["machine", *machines]
    assert "none fits" in lines[1]
    assert lines[4].startswith("RTX 4090: q4k needs ")
    assert ran.code == ExitCode.DONE


def test_nothing_fits(run_mrs, model: str) -> None:
    assert run_mrs("fit", "-m", model, "--on", "RTX 4060").code == ExitCode.DOES_NOT_FIT


def test_for_programs(run_mrs, model: str) -> None:
    (machine,) = json.loads(run_mrs("fit", "--json", "-m", model, "--on", "H100").out)["machines"]
    assert (machine["machine"], machine["best"], machine["needs"]) == ("H100", "q8_0", None)
    none, chosen, *_ = machine["formats"]
    assert not none["fits"]
    assert none["decode_tokens_per_s"] is None
    assert chosen["isq"] == "q8_0"
    rate = chosen["decode_tokens_per_s"]
    assert rate["low"] < rate["expected"] < rate["high"]
    assert chosen["longest_tokens"] > 10_000


@pytest.mark.parametrize("columns", [40, 60, 100])
def test_no_line_of_the_table_is_wider_than_a_terminal(
    model: str, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    out = Terminal()
    environment = Environment(io.StringIO(), out, io.StringIO(), {"TERM": "xterm"})
    assert main(("fit", "-m", model, "--on", "H100"), environment) == 0
    rows = out.getvalue().splitlines()[:8]
    assert all(len(row) <= columns for row in rows)
    assert all("%" in row or "none" in row or "loss" in row for row in rows)
    assert any("\u2588" in row for row in rows) == (columns >= 100), "bars where there is room"


@pytest.mark.parametrize("columns", [40, 80, 140])
def test_long_names_of_machines_do_not_break_the_table(
    model: str, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    out = Terminal()
    environment = Environment(io.StringIO(), out, io.StringIO(), {"TERM": "xterm"})
    machines = ("2x RTX 3090 + Ryzen 9 9950X 96GB", "M2 Ultra 192GB")
    on = [word for machine in machines for word in ("--on", machine)]
    assert main(("fit", "-m", model, *on), environment) == 0
    table = out.getvalue().partition("first token: of")[0].splitlines()
    assert all(len(row) <= columns for row in table)
    assert all(any(row.startswith(machine) for row in table) for machine in machines)
    assert sum("%" in row or " none" in row for row in table) >= len(machines)


def test_an_unknown_machine_is_an_error_of_its_flag(run_mrs, model: str) -> None:
    ran = run_mrs("fit", "-m", model, "--on", "RTX 4091")
    assert ran.code == ExitCode.USAGE
    assert "(--on)" in ran.err
