"""The man pages and the completions are those that the command tree makes."""

from __future__ import annotations

import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from mrs.errors import ExitCode
from mrs_cli import docs
from mrs_cli.app import command_tree

ROOT = Path(__file__).parents[2]
_documents, _pages = cache(docs.documents), cache(docs.man_pages)


def test_generated_files_are_current():
    for path, made in _documents().items():
        assert (ROOT / path).read_text(encoding="utf-8") == made, "run: python -m mrs_cli.docs"


def test_nothing_else_is_generated():
    written = [*(ROOT / "man").glob("*.1"), *(ROOT / "completions").iterdir()]
    assert {path.relative_to(ROOT).as_posix() for path in written} == set(_documents())


def test_each_command_has_a_page_which_that_of_mrs_names():
    tree = command_tree()
    assert set(_pages()) == {"mrs", *(f"mrs-{name}" for name in tree.commands)}
    short = _pages()["mrs"].replace("\\-", "-")
    assert all(f"mrs-{name}(1)" in short for name in tree.commands)
    assert len(short.splitlines()) < 250


def test_every_flag_and_exit_code_is_in_the_man_pages():
    page = "\n".join(_pages().values()).replace("\\-", "-")
    tree = command_tree()
    flags = {
        name for each in (tree, *tree.commands.values()) for p in each.params for name in p.opts
    }
    assert {"--isq", "-P", "--quantized-filename", "--version"} <= flags
    for flag in flags - {"words", "shell", "servers", "preset"}:
        assert re.search(rf"^\.B .*(?<!\S){flag}(?!\S)|^\.B .*{flag},", page, re.MULTILINE), flag
    assert set(docs.EXIT_MEANINGS) == set(ExitCode)


@pytest.mark.skipif(not shutil.which("groff"), reason="groff is not installed")
def test_groff_finds_nothing_to_warn_of():
    ran = subprocess.run(
        ["groff", "-man", "-Tutf8", "-ww", "-z"],
        input="\n".join(_pages().values()),
        capture_output=True,
        check=True,
        text=True,
    )
    assert ran.stderr == ""


@pytest.mark.parametrize(
    ("shell", "name"),
    [
        pytest.param(shell, name, marks=pytest.mark.needs(shell))
        for shell, name in docs.COMPLETIONS.items()
    ],
)
def test_shells_can_parse_their_completions(shell, name):
    subprocess.run([shell, "-n", str(ROOT / "completions" / name)], check=True)


def test_the_manual_lists_every_exit_code():
    rows = re.findall(
        r"^\| (\d+) \| (.+?) \|$", (ROOT / "man/reference.md").read_text("utf-8"), re.MULTILINE
    )
    assert [int(code) for code, _ in rows] == [int(code) for code in ExitCode]
