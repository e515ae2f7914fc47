"""The man pages and the completions are those that the command tree makes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from mrs.errors import ExitCode
from mrs_cli import docs
from mrs_cli.app import command_tree
from mrs_cli.docs import roff
from mrs_cli.docs.command_pages import EXIT_MEANINGS
from mrs_cli.docs.manual_pages import manual_pages

ROOT = Path(__file__).parents[2]


@cache
def _documents() -> dict[str, str]:
    return docs.documents(ROOT)


def _pages(section: int) -> dict[str, str]:
    """The pages of a section by their names."""
    paths = {Path(path): text for path, text in _documents().items()}
    return {path.stem: text for path, text in paths.items() if path.suffix == f".{section}"}


def test_generated_files_are_current():
    for path, made in _documents().items():
        assert (ROOT / path).read_text(encoding="utf-8") == made, "run: python -m mrs_cli.docs"


def test_nothing_else_is_generated():
    written = [*(ROOT / "man").glob("*.[0-9]"), *(ROOT / "completions").iterdir()]
    assert {path.relative_to(ROOT).as_posix() for path in written} == set(_documents())


def test_each_command_has_a_page_which_that_of_mrs_names():
    tree = command_tree()
    assert set(_pages(1)) == {"mrs", *(f"mrs-{name}" for name in tree.commands)}
    short = _pages(1)["mrs"].replace("\\-", "-")
    assert all(f"mrs-{name}(1)" in short for name in tree.commands)
    assert len(short.splitlines()) < 250


def test_every_flag_and_exit_code_is_in_the_man_pages():
    page = "\n".join(_pages(1).values()).replace("\\-", "-")
    tree = command_tree()
    flags = {
        name for each in (tree, *tree.commands.values()) for p in each.params for name in p.opts
    }
    assert {"--isq", "-P", "--quantized-filename", "--version"} <= flags
    for flag in flags - {"words", "shell", "servers", "preset"}:
        assert re.search(rf"^\.B .*(?<!\S){flag}(?!\S)|^\.B .*{flag},", page, re.MULTILINE), flag
    assert set(EXIT_MEANINGS) == set(ExitCode)


@pytest.mark.skipif(not shutil.which("groff"), reason="groff is not installed")
def test_groff_finds_nothing_to_warn_of():
    """As `man` calls it in a terminal of 80 columns."""
    for path, text in _documents().items():
        if path.startswith("man/"):
            assert _rendered(text) == (0, ""), path


def _rendered(page: str) -> tuple[int, str]:
    """The exit code and the warnings of groff."""
    command = ["groff", "-t", "-man", "-Tutf8", "-rLL=78n", "-ww", "-z"]
    ran = subprocess.run(command, input=page, capture_output=True, check=False, text=True)
    return ran.returncode, ran.stderr


def test_each_page_of_the_manual_has_a_man_page_which_that_of_mrs_names():
    sources = {path.stem for path in (ROOT / "man").glob("*.md")} - {"index"}
    assert set(_pages(7)) == {f"mrs-{name}" for name in sources}
    short = _pages(1)["mrs"].replace("\\-", "-")
    assert all(f".BR mrs-{name} (7)" in short for name in sources)


@pytest.mark.parametrize("name", sorted(_pages(7)))
def test_no_word_of_the_manual_is_lost(name):
    source = (ROOT / f"man/{name.removeprefix('mrs-')}.md").read_text(encoding="utf-8")
    # Pictures, addresses, marks of code, and heads of tables, which lists do not have.
    unseen = r"!\[.*?\]\(.*?\)|\]\([^)]*\)|^```.*$|^\|.*\n\|[ |:-]*$"
    words = Counter(_words(re.sub(unseen, "", source, flags=re.MULTILINE)))
    assert words - Counter(_words(_text(_pages(7)[name]))) == Counter()


def _words(text: str) -> list[str]:
    return re.findall(r"\w[\w-]*", text.lower())


def _text(page: str) -> str:
    """The characters that escapes of roff stand for, without fonts."""
    for escape, character in roff.LITERAL.items():
        page = page.replace(character, chr(escape))
    page = re.sub(r"\\\[u(\w+)\]", lambda found: chr(int(found[1], 16)), page)
    return re.sub(r"\\f[BIR]", "", page)


def test_markdown_that_has_no_form_in_roff_is_refused(tmp_path):
    (tmp_path / "page.md").write_text("# A page\n\n---\n")
    with pytest.raises(ValueError, match="no roff for hr"):
        manual_pages(tmp_path)


def test_a_table_without_room_is_a_list(tmp_path):
    wide = "word " * 20
    table = f"| a | b | c |\n| --- | --- | ---: |\n| {wide}| {wide}| 3 |\n"
    (tmp_path / "page.md").write_text(f"# A page\n\n{table}")
    assert ".TS" not in (made := manual_pages(tmp_path)["mrs-page"])
    assert f".TP\n{wide.strip()}\nb: {wide.strip()}\n.br\nc: 3\n" in made


@pytest.mark.parametrize(
    ("shell", "name"),
    [
        pytest.param(shell, name, marks=pytest.mark.needs(shell))
        for shell, name in docs.COMPLETIONS.items()
    ],
)
def test_shells_can_parse_their_completions(shell, name):
    subprocess.run([shell, "-n", str(ROOT / "completions" / name)], check=True)


@pytest.mark.needs("zsh")
def test_zsh_completes_with_the_script_alone_in_a_new_zshrc(tmp_path):
    """zsh starts its completions only if a .zshrc says so."""
    script = str(ROOT / "completions" / docs.COMPLETIONS["zsh"])
    ran = subprocess.run(
        ["zsh", "-fc", 'source "$0"; print -r -- $_comps[mrs]', script],
        env={"HOME": str(tmp_path), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (ran.stdout, ran.stderr) == ("_mrs_completion\n", "")


def test_the_manual_lists_every_exit_code():
    rows = re.findall(
        r"^\| (\d+) \| (.+?) \|$", (ROOT / "man/reference.md").read_text("utf-8"), re.MULTILINE
    )
    assert [int(code) for code, _ in rows] == [int(code) for code in ExitCode]
