"""What is shown while a model loads, and the line that names it then."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys

import pytest
from mrs_runs import Terminal

from mrs.events import DISK, LoadProgress
from mrs.request import ModelSource, RunRequest
from mrs_cli.app import main
from mrs_cli.commands.loading import load_model, with_progress
from mrs_cli.environment import Environment

SUMMARY = "Llama-3.3-70B-Instruct: llama, Q4_K_M, 39.59 GiB on cuda:0 (40 layers), cpu (40 layers)"


class Narrow(Terminal):
    """A terminal that keeps what was written."""


def shown(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)


@pytest.fixture
def terminal(monkeypatch):
    """An environment whose standard error is a terminal of so many columns."""

    def make(columns: int, load=None) -> Environment:
        monkeypatch.setenv("COLUMNS", str(columns))
        return Environment(Terminal(), io.StringIO(), Narrow(), {"TERM": "xterm"}, load)

    return make


class Model:
    summary = SUMMARY


def summary_lines(environment: Environment) -> list[str]:
    load_model(environment, RunRequest(ModelSource("x", "safetensors")), quiet=False)
    lines = [line.rstrip() for line in shown(environment.stderr.getvalue()).splitlines()]
    return lines[next(i for i, line in enumerate(lines) if "Llama" in line) :]


@pytest.mark.full
def test_the_summary_breaks_between_words(terminal):
    for columns in range(20, 201):
        lines = summary_lines(terminal(columns, lambda request, show: Model()))
        assert max(map(len, lines)) <= columns
        for word, whole in zip(" ".join(lines).split(), SUMMARY.split(), strict=True):
            cut = word.endswith("\u2026") and whole.startswith(word[:-1])
            assert cut if len(whole) > columns else word == whole


@pytest.mark.parametrize("columns", [40, 80, 140])
def test_bars_know_their_total_from_the_beginning(terminal, columns):
    environment = terminal(columns)
    seen = []

    def work(show):
        for device, done in ((DISK, 0), (DISK, 1 << 20), ("cpu", 0), ("cpu", 1 << 20)):
            show(LoadProgress(device, done, 2 << 20))
            seen.append(shown(environment.stderr.getvalue()))

    with_progress(environment, "loading a model", work, quiet=False)
    text = shown(environment.stderr.getvalue())
    assert "?" not in text
    assert max(len(line) for line in re.split(r"[\r\n]+", text)) <= columns


def test_the_first_progress_of_a_device_has_its_total():
    from mrs.run.model_loader import ModelLoader

    seen: list[LoadProgress] = []
    ModelLoader(RunRequest(ModelSource("demo", "safetensors"), cpu=True)).load(seen.append).close()
    assert seen[0].done_bytes == 0
    assert seen[0].total_bytes == seen[-1].done_bytes == seen[-1].total_bytes


def test_the_summary_names_the_model_and_not_its_path(tmp_path):
    from mrs.source.locate import DEMO_FOLDER

    link = tmp_path / "a folder with a long name" / "my-model"
    link.parent.mkdir()
    link.symlink_to(DEMO_FOLDER / "model")
    out, err = io.StringIO(), io.StringIO()
    environment = Environment(io.StringIO(), out, err, {})
    assert main(["-P", "Hi", "plain", "-m", str(link), "--max-tokens", "1"], environment) == 0
    _, summary = err.getvalue().splitlines()[:2]  # the first line says that there is a GGUF file
    assert summary.startswith("my-model: llama, ")
    assert str(tmp_path) not in err.getvalue()


def test_a_template_without_thinking_says_so_once():
    out, err = io.StringIO(), io.StringIO()
    environment = Environment(io.StringIO("Hi\nHi\n"), out, err, {})
    assert (
        main(["--thinking", "true", "plain", "-m", "demo", "--max-tokens", "1"], environment) == 0
    )
    said = "mrs: warning: --thinking has no effect: the chat template does not support it\n"
    assert err.getvalue().count(said) == 1


def test_a_warning_stands_above_the_bar():
    """Not on the bar's own line, which would stay."""
    import io

    from mrs_runs import Terminal

    from mrs_cli.environment import Environment
    from mrs_cli.render.error_lines import say
    from mrs_cli.render.progress_bars import progress_bars

    shown = Terminal()
    environment = Environment(io.StringIO(), io.StringIO(), shown, {"TERM": "xterm"})
    with progress_bars(environment, "loading x"):
        say(environment, "warning: one")
    say(environment, "warning: two")
    before, _, after = shown.getvalue().partition("mrs: warning: one\n")
    assert before.endswith("\x1b[2K")
    assert "loading x" in after
    assert after.endswith("mrs: warning: two\n")


WITHOUT_LIBRARY = """
import sys
from pathlib import Path
from mrs.kernels.cpu import library_file
library_file.PATH = Path("not-built")
from mrs_cli.__main__ import main
sys.argv = ["mrs", "-m", "demo", "-P", "Who are you?"]
main()
"""


@pytest.mark.full  # it loads torch
@pytest.mark.parametrize(("path", "times"), [("", 1), ("torch", 0)])
def test_kernels_that_are_not_built_are_named_once(path, times):
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT_LIBRARY],
        env={**os.environ, "MRS_CPU_PATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
        text=True,
    )
    assert "mrs demo model" in ran.stdout
    assert ran.stderr.count("native CPU kernels are not built") == times
