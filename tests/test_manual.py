"""The README and the manual: their commands run, their flags, links and pictures exist."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from mrs.architecture.family_registry import families
from mrs.architecture.vision.describe_vision import vision_families
from mrs_cli.app import command_tree
from mrs_cli.parsing.flags.no_effect_flags import NO_EFFECT
from support.hub_server import HubServer

ROOT = Path(__file__).parent.parent
DEMO = ROOT / "core/mrs/demo/model"
SEEING = ROOT / "core/mrs/demo/vision_model"
PAGES = (ROOT / "README.md", *sorted((ROOT / "man").glob("*.md")))
LINKING = (*PAGES, ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md")
#: Flags of other programs that the pages name.
FOREIGN_FLAGS = {
    *(
        "--cuda",
        "--extra-index-url",
        "--nproc-per-node",
        "--pip-args",
        "--strict",
        "--torch-backend",
        "--uid",
    )
}


def blocks(language: str, page: Path) -> list[str]:
    """The code blocks of a page in one language, lines that end with a backslash joined."""
    text = page.read_text(encoding="utf-8").replace("\\\n", "")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


INSTALLS = [
    line for block in blocks("sh", PAGES[0]) for line in block.splitlines() if "-m venv" in line
]
#: What a test machine can run, as blocks of commands that may build on each other.
SCRIPTS = list(
    dict.fromkeys(
        block.strip()
        for page in PAGES
        for block in blocks("sh", page)
        if block.strip() not in INSTALLS
    )
)
SNIPPETS = list(dict.fromkeys(block for page in PAGES for block in blocks("python", page)))


@pytest.fixture(scope="module")
def hub() -> Iterator[HubServer]:
    """A hub that has every model the pages name, each with a demo model's files."""
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


def run(
    command: str, hub: HubServer, folder: Path, place: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    """A command in `place` of a person whose home is `folder`."""
    binaries = folder / "bin"
    binaries.mkdir(exist_ok=True)
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
        "XDG_CONFIG_HOME": str(folder / "config"),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.run(
        ["bash", "-c", command],
        input="" if "-P " in command else "Who are you?\n\\exit\n",
        capture_output=True,
        text=True,
        env=environment,
        timeout=600,
        check=False,
        cwd=place,
    )


def test_the_two_lines_are_there() -> None:
    assert len(INSTALLS) == 2
    assert INSTALLS[0].endswith(".venv/bin/mrs -i plain -m demo")
    assert INSTALLS[1].endswith(".venv/bin/python -m pytest -q")


def test_the_readme_is_short() -> None:
    assert len(PAGES[0].read_text(encoding="utf-8").splitlines()) <= 150


@pytest.mark.full  # core has them one by one, in one process: the tests of `cli/`
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.splitlines()[0])
def test_commands(script: str, hub: HubServer, tmp_path: Path) -> None:
    writes_files = " > " in script or " -o " in script
    place = tmp_path if writes_files else ROOT
    for command in script.splitlines():
        result = run(command, hub, tmp_path, place)
        assert result.returncode == 0, (command, result.stderr)
        writes_file = " > " in command or command.startswith("mrs batch")
        assert result.stdout.strip() or writes_file, (command, result.stderr)
        if " -i " in command:
            name = "mrs vision demo" if "vision-plain" in command else "mrs demo model"
            assert name in result.stdout, command
        if "three_red_circles" in command:
            assert result.stdout == "Three red circles.\n"
        if "'Who are you?'" in command:
            assert "mrs demo model" in result.stdout


@pytest.mark.full
@pytest.mark.parametrize("snippet", SNIPPETS, ids=range(len(SNIPPETS)))
def test_python_snippets_run(snippet: str, hub: HubServer, tmp_path: Path) -> None:
    output = run_python(snippet, hub, tmp_path)
    assert output.strip()
    if "Who are you?" in snippet:
        assert "mrs demo model" in output


def run_python(snippet: str, hub: HubServer, folder: Path) -> str:
    script = folder / "snippet.py"
    script.write_text(snippet, encoding="utf-8")
    result = run(f'"{sys.executable}" "{script}"', hub, folder)
    assert result.returncode == 0, result.stderr
    return result.stdout


@cache
def known_flags() -> frozenset[str]:
    """Every flag of the program, those of all commands together."""
    commands, flags = [command_tree()], {"--help", *NO_EFFECT}
    while commands:
        command = commands.pop()
        commands += getattr(command, "commands", {}).values()
        flags |= {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
    return frozenset(flags)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_flag_that_a_page_names_exists(page: Path) -> None:
    named = set(re.findall(r"(?<![\w|-])--[a-z][\w-]*", page.read_text(encoding="utf-8")))
    assert named - FOREIGN_FLAGS <= known_flags()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_that_a_page_names_exists(page: Path) -> None:
    lines = [
        line for kind in ("sh", "bash") for text in blocks(kind, page) for line in text.splitlines()
    ]
    for line in lines:
        words = shlex.split(line, comments=True)
        if words[:1] == ["mrs"] and not words[1].startswith("-"):
            assert words[1] in command_tree().commands, line


def titles(page: Path) -> set[str]:
    """The anchors of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings}


@pytest.mark.parametrize("page", LINKING, ids=lambda page: page.stem)
def test_every_link_leads_somewhere(page: Path) -> None:
    text = re.sub(
        r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
    )
    for link in set(re.findall(r"\]\(([^)\s]+)\)", text)):
        if link.startswith(("http://", "https://")):
            continue
        file, _, anchor = link.partition("#")
        target = page.parent / file if file else page
        assert target.exists(), link
        if anchor:
            assert anchor in titles(target), link


def test_every_page_is_reached_from_the_readme_and_in_the_site() -> None:
    readme = PAGES[0].read_text(encoding="utf-8")
    site = (ROOT / "man/site/mkdocs.yml").read_text(encoding="utf-8")
    for page in PAGES[1:]:
        assert page.stem == "index" or f"(man/{page.name}" in readme, page.name
        assert f": {page.name}\n" in site, page.name


def test_pictures_are_there() -> None:
    pictures = [
        (page.parent / picture)
        for page in PAGES
        for picture in re.findall(r"!\[[^]]*\]\(([^)]+)\)", page.read_text(encoding="utf-8"))
    ]
    assert len(set(map(Path.resolve, pictures))) >= 3
    for picture in pictures:
        start = picture.read_bytes()[:2000]
        assert b"<svg" in start or start.startswith(b"\x89PNG")


def test_the_families_are_those_of_the_registries():
    page = (ROOT / "man/models.md").read_text(encoding="utf-8")
    for heading, registry in (("Text", families), ("Vision", vision_families)):
        section = page.split(f"\n## {heading} families\n")[1].split("\n#")[0]
        quoted = "".join(re.findall(r"^> .*$", section, re.MULTILINE))
        named = re.findall(r"`(\w+)`", quoted)
        assert len(named) == len(set(named))
        aliases = {alias for family in registry().values() for alias in family.aliases}
        # The language model of mllama is a family of its own, which nobody names.
        assert set(registry()) - {"mllama_text_model"} <= set(named) <= {*registry(), *aliases}


def test_every_path_of_contributing_exists():
    recipes = [(ROOT / "core/mrs").rglob("__init__.py"), (ROOT / "cli").rglob("__init__.py")]
    texts = [path.read_text() for paths in recipes for path in paths]
    text = "\n".join([(ROOT / "CONTRIBUTING.md").read_text(), *texts])
    paths = [path for path in re.findall(r"`([a-z_./]+/[a-z_.]*)`", text) if "<" not in path]
    roots = (ROOT, ROOT / "core/mrs", ROOT / "cli/mrs_cli", ROOT / "tests")
    within = [folder for root in roots for folder in (root, *filter(Path.is_dir, root.glob("*")))]
    assert [p for p in paths if not any((folder / p).exists() for folder in within)] == []
    assert len(paths) > 40
