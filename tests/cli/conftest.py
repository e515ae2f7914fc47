"""Running `mrs` with a fake model: inside this process, or as a process of its own."""

from __future__ import annotations

import io
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import fake_model
import pytest
from mrs_runs import FAKE_MRS, PROMPT, Ran, Terminal

import mrs
import mrs_cli
from mrs.events import OnProgress
from mrs.request import RunRequest
from mrs_cli.app import main
from mrs_cli.environment import Environment


@pytest.fixture(autouse=True)
def _own_state(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes the chats, the history and the presets of whoever runs it."""
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path_factory.mktemp("own")))


@pytest.fixture
def run_mrs() -> Callable[..., Ran]:
    """`run_mrs("plain", "-m", "x", stdin="hello\\n")`; stdin None is a terminal."""

    def run(*arguments: str, stdin: str | None = "") -> Ran:
        models: list[fake_model.FakeModel] = []

        def load(
            request: RunRequest, on_progress: OnProgress | None = None
        ) -> fake_model.FakeModel:
            models.append(fake_model.load(request, on_progress))
            return models[-1]

        out, err = io.StringIO(), io.StringIO()
        source = Terminal() if stdin is None else io.StringIO(stdin)
        code = main(arguments, Environment(source, out, err, {}, load))
        return Ran(code, out.getvalue(), err.getvalue(), models)

    return run


@pytest.fixture
def talk(run_mrs: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    """`talk("hello")` is a chat with a person at a terminal that knows nothing but lines."""

    def run(*said: str, flags: Sequence[str] = (), model: str = "x") -> Ran:
        lines = iter([*(f"{line}\n" for line in said), ""])
        monkeypatch.setattr(Terminal, "readline", lambda self: next(lines))
        return run_mrs("-i", *flags, "plain", "-m", model, stdin=None)

    return run


@pytest.fixture
def process_env(tmp_path: Path) -> dict[str, str]:
    """Variables for a process that imports the same packages and keeps its state to itself."""
    roots = {str(Path(package.__file__).parents[1]) for package in (mrs, mrs_cli)}
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join(sorted(roots)),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "LANG": "C.UTF-8",
        "TERM": "xterm-256color",
        "PROMPT_TOOLKIT_NO_CPR": "1",  # nobody answers where the cursor is
    }


@pytest.fixture
def start_mrs(process_env: dict[str, str]) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts `mrs` with the fake model, its output piped; what still runs is killed at the end."""
    started: list[subprocess.Popen[str]] = []

    def start(
        *arguments: str, command: Sequence[str] = FAKE_MRS, stdin: int = subprocess.DEVNULL
    ) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            [*command, *arguments],
            stdin=stdin,
            stdout=pipe,
            stderr=pipe,
            env=process_env,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def chat(process_env: dict[str, str]) -> Iterator[Callable[..., Any]]:
    """`chat("-q")` is a chat with a fake model in a terminal that already shows the prompt."""
    pexpect = pytest.importorskip("pexpect")
    children = []

    def start(
        *flags: str,
        command: Sequence[str] = FAKE_MRS,
        selector: str = "plain",
        wait: str | None = PROMPT,
        timeout: int = 120,
        cwd: Path | None = None,
        **variables: str,
    ) -> Any:
        child = pexpect.spawn(
            command[0],
            [*command[1:], "-i", "-v", selector, "-m", "demo", *flags],
            env={**process_env, **variables},
            cwd=cwd,
            encoding="utf-8",
            dimensions=(24, 80),
            timeout=timeout,
        )
        children.append(child)
        if wait is not None:
            child.expect_exact(wait)
        return child

    yield start
    for child in children:
        child.close(force=True)
