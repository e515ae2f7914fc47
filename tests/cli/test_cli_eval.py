"""`mrs eval` compares formats of the demo model, as a table, as JSON and as a plot."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from mrs_cli.app import main

FEW = ["--windows", "2", "--context-length", "64"]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_a_table_a_plot_and_what_it_costs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plot = tmp_path / "loss.svg"
    words = ["eval", "-m", "demo", "--isq", "q8_0,q4k", "--plot", str(plot), *FEW]
    assert main(words) == 0
    shown = capsys.readouterr()
    assert "3 models, one after the other" in shown.err
    assert "of memory" in shown.err
    rows = [line.split()[0] for line in shown.out.splitlines() if " MiB " in line]
    assert rows == ["q8_0", "q4k"]
    texts = [each.text for each in ElementTree.parse(plot).iter() if each.tag.endswith("}text")]
    assert {"q8_0", "q4k", "Q4_K_M"} <= set(texts)
    plot.write_text("my own")
    assert main(words) == 2
    assert plot.read_text() == "my own"


def test_json_and_what_fit_says_afterwards(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "-q", "--json", "-m", "demo", "--isq", "q4k", *FEW]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["windows"], report["scored_tokens"]) == (2, 62)
    (setting,) = report["settings"]
    assert setting["isq"] == "q4k"
    assert 0 < setting["divergence_nats"]["median"]["value"] < setting["divergence_nats"]["max"]
    assert main(["fit", "-q", "--json", "-m", "demo"]) == 0
    (machine,) = json.loads(capsys.readouterr().out)["machines"]
    losses = {
        each["isq"]: (each["perplexity_loss"], each["perplexity_loss_is_measured"])
        for each in machine["formats"]
    }
    assert losses["q4k"] == (setting["perplexity_change"]["value"], True)
    assert losses["q8_0"] == (0.0002, False)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--isq", "q4k,q9"], "q9 is not a known format"),
        (["--cache-types", "f16,q1"], "'q1' is not a type"),
        (["--reference", "none", "--plot", "a.svg"], "--plot draws the divergence"),
        (["--stride", "64"], "at most 63"),
    ],
)
def test_what_is_not_understood_is_refused(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", "-m", "demo", *FEW, *words]) == 2
    assert said in capsys.readouterr().err
