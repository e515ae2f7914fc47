"""Every command that the README shows does what it says, on models served from this machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mrs.architecture.family_registry import families
from mrs.architecture.vision.describe_vision import vision_families
from support.hub_server import HubServer

ROOT = Path(__file__).parent.parent
DEMO = ROOT / "core/mrs/demo/model"
SEEING = ROOT / "core/mrs/demo/vision_model"
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
COMMANDS = [line for block in BLOCKS for line in block.strip().splitlines()]
#: The two lines that install: what tests the project runs the second, and the first before it.
INSTALLS = [line for line in COMMANDS if line.startswith("python3 -m venv")]


@pytest.fixture(scope="module")
def hub() -> Iterator[HubServer]:
    """A hub that has every model the README names, each with the demo model's files."""
    files = {path.name: path.read_bytes() for path in DEMO.iterdir()}
    gguf = files.pop("demo.gguf")
    with HubServer() as server:
        server.add("meta-llama/Llama-3.2-1B-Instruct", files)
        server.add("meta-llama/Llama-3.1-8B-Instruct", files)
        server.add(
            "bartowski/Llama-3.2-1B-Instruct-GGUF", {"Llama-3.2-1B-Instruct-Q4_K_M.gguf": gguf}
        )
        seeing = {path.name: path.read_bytes() for path in SEEING.iterdir()}
        server.add("meta-llama/Llama-3.2-11B-Vision-Instruct", seeing)
        yield server


def run(command: str, hub: HubServer, folder: Path) -> subprocess.CompletedProcess[str]:
    binaries = folder / "bin"
    binaries.mkdir()
    mrs = binaries / "mrs"
    mrs.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m mrs_cli "$@"\n')
    mrs.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{binaries}:{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT / 'core'}:{ROOT / 'cli'}",
        "HF_ENDPOINT": hub.endpoint,
        "HOME": str(folder),
        "HF_HOME": str(folder / "hub"),
        "XDG_STATE_HOME": str(folder / "state"),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.run(
        ["bash", "-c", command],
        input="Who are you?\n\\exit\n",
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
        check=False,
    )


def test_the_two_lines_are_there() -> None:
    assert len(INSTALLS) == 2
    assert INSTALLS[0].endswith(".venv/bin/mrs -i plain -m demo")
    assert INSTALLS[1].endswith(".venv/bin/python -m pytest -q")


@pytest.mark.full  # core has them one by one, in one process: the tests of `cli/`
@pytest.mark.parametrize("command", [line for line in COMMANDS if line not in INSTALLS])
def test_command(command: str, hub: HubServer, tmp_path: Path) -> None:
    result = run(command, hub, tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip(), result.stderr
    if " -i " in command:
        name = "mrs vision demo" if "vision-plain" in command else "mrs demo model"
        assert name in result.stdout
    if "three_red_circles" in command:
        assert result.stdout == "Three red circles.\n"


@pytest.mark.full
def test_the_replies_are_what_the_readme_promises(hub: HubServer, tmp_path: Path) -> None:
    pipe = next(line for line in COMMANDS if line.startswith("printf"))
    replies = run(pipe, hub, tmp_path).stdout.splitlines()
    assert len(replies) == 2
    assert "7" in replies[0]
    assert "mrs demo model" in replies[1]


def test_the_python_example_answers(hub: HubServer, tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    script = tmp_path / "example.py"
    script.write_text(example)
    result = run(f'"{sys.executable}" "{script}"', hub, tmp_path)
    assert "mrs demo model" in result.stdout, result.stderr


def test_pictures_are_there() -> None:
    pictures = re.findall(r"!\[[^]]*\]\(([^)]+)\)", README)
    assert len(pictures) >= 2
    for picture in pictures:
        start = (ROOT / picture).read_bytes()[:2000]
        assert b"<svg" in start or start.startswith(b"\x89PNG")


def test_the_families_are_those_of_the_registries():
    for heading, registry in (("Text", families), ("Vision", vision_families)):
        (names,) = re.findall(rf"\*\*{heading} families\*\*(.*?)\. Tests", README, re.DOTALL)
        named = set(re.findall(r"`(\w+)`", names)) - {"mmproj"}
        aliases = {alias for family in registry().values() for alias in family.aliases}
        # The language model of mllama is a family of its own, which nobody names.
        assert set(registry()) - {"mllama_text_model"} <= named <= {*registry(), *aliases}


def test_every_path_of_contributing_exists():
    recipes = [(ROOT / "core/mrs").rglob("__init__.py"), (ROOT / "cli").rglob("__init__.py")]
    texts = [path.read_text() for paths in recipes for path in paths]
    text = "\n".join([(ROOT / "CONTRIBUTING.md").read_text(), *texts])
    paths = [path for path in re.findall(r"`([a-z_./]+/[a-z_.]*)`", text) if "<" not in path]
    roots = (ROOT, ROOT / "core/mrs", ROOT / "cli/mrs_cli", ROOT / "tests")
    within = [folder for root in roots for folder in (root, *filter(Path.is_dir, root.glob("*")))]
    assert [p for p in paths if not any((folder / p).exists() for folder in within)] == []
    assert len(paths) > 40
