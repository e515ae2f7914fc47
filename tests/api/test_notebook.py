"""What a notebook and a terminal show of loading and of streamed replies."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from mrs import ChatCompletionRequest, Runner, Which, show_progress, show_reply
from mrs.events import DISK, LoadProgress

CHAT = [{"role": "user", "content": "Who are you?"}]
MIB = 2**20


class Cell:
    """In the place of IPython: what is below a cell, `has_kernel` as in a notebook."""

    def __init__(self, *, has_kernel: bool) -> None:
        self.outputs: list[dict[str, str]] = []
        self.updates = 0
        shell = SimpleNamespace(kernel=object() if has_kernel else None)
        self.get_ipython = lambda: shell
        self.display = SimpleNamespace(display=self._display)

    def _display(self, content: dict[str, str], *, raw: bool, display_id: bool) -> Any:
        assert raw
        assert display_id
        self.outputs.append(content)
        place = len(self.outputs) - 1

        def update(content: dict[str, str], *, raw: bool) -> None:
            assert raw
            self.outputs[place] = content
            self.updates += 1

        return SimpleNamespace(update=update)


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> Cell:
    made = Cell(has_kernel=True)
    monkeypatch.setitem(sys.modules, "IPython", made)  # type: ignore[arg-type]
    return made


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with Runner(Which.Plain("demo"), seed=1) as runner:
        yield runner


def request(n_choices: int = 1) -> Any:
    return ChatCompletionRequest(CHAT, temperature=0, stream=True, n_choices=n_choices)


def test_a_notebook_shows_how_far_a_model_is_loaded(cell: Cell) -> None:
    with Runner(Which.Plain("demo")):
        (output,) = cell.outputs
    assert output == {"text/plain": "4.39 MiB of 4.39 MiB loaded on cpu"}
    assert cell.updates > 0


def test_a_function_of_the_program_gets_the_progress_instead(cell: Cell) -> None:
    seen: list[LoadProgress] = []
    with Runner(Which.Plain("demo"), on_progress=seen.append):
        assert seen[-1].done_bytes == seen[-1].total_bytes
    assert cell.outputs == []


def test_a_notebook_draws_a_streamed_reply(cell: Cell, runner: Runner) -> None:
    text = show_reply(runner.send_chat_completion_request(request()))
    assert cell.outputs == [{"text/plain": text, "text/markdown": text}]
    assert "demo" in text


def test_choices_are_parted(cell: Cell, runner: Runner) -> None:
    text = show_reply(runner.send_chat_completion_request(request(2)))
    first, second = text.split("\n\n---\n\n")
    assert first == second
    assert len(cell.outputs) == 1


@pytest.mark.parametrize("has_ipython", [False, True])
def test_elsewhere_a_reply_is_written_as_it_arrives(
    runner: Runner,
    has_ipython: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if has_ipython:  # as in its shell in a terminal
        monkeypatch.setitem(sys.modules, "IPython", Cell(has_kernel=False))  # type: ignore[arg-type]
    for n_choices in (1, 2):
        text = show_reply(runner.send_chat_completion_request(request(n_choices)))
        assert capsys.readouterr().out == f"{text}\n"


def test_a_pipe_gets_a_line_when_all_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    show = show_progress()
    for device, done in ((DISK, 0), (DISK, 3 * MIB), ("cpu", 0), ("cpu", MIB), ("cpu", 3 * MIB)):
        show(LoadProgress(device, done, 3 * MIB))
    assert capsys.readouterr().err.splitlines() == [
        "3.00 MiB of 3.00 MiB downloaded",
        "3.00 MiB of 3.00 MiB downloaded, 3.00 MiB of 3.00 MiB loaded on cpu",
    ]


def test_a_terminal_gets_a_line_that_changes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    show = show_progress()
    for done in (0, MIB):
        show(LoadProgress("cpu", done, MIB))
    err = capsys.readouterr().err
    assert err.split("\r\x1b[K") == [
        "", "0 B of 1.00 MiB loaded on cpu", "1.00 MiB of 1.00 MiB loaded on cpu\n"
    ]  # fmt: skip


@pytest.mark.full
def test_a_program_never_imports_ipython() -> None:
    program = (
        "import sys; from mrs import Runner, Which, show_progress;"
        "Runner(Which.Plain('demo'), on_progress=show_progress()).close();"
        "print('IPython' in sys.modules)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ran.stdout == "False\n"
