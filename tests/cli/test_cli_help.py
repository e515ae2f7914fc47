"""Every help page: whole sentences that wrap, and only flags that mean something there."""

from __future__ import annotations

import re

import pytest

from mrs_cli.app import command_tree

TREE = command_tree()
PAGES = [
    [],
    *([name] for name in TREE.commands),
    *([name, sub] for name in ("plan", "bench", "cache") for sub in TREE.commands[name].commands),
]
PLACEMENT = {"-n", "--isq", "--cpu", "--strategy", "--plan", "--no-kv-cache", "--token-source"}
OF_A_REPLY = {"-i", "--thinking", "--seed", "--chat-template", "--jinja-explicit", "--log"}
OF_A_REPLY |= {"--max-seqs", "--prefix-cache-dir", "--continue", "--prompt", "--top-k"}


@pytest.fixture
def page(run_mrs, capsys, monkeypatch):
    """`page(["plan"], columns=80)` is the help of `mrs plan`."""

    def read(words: list[str], columns: int = 80) -> str:
        monkeypatch.setenv("COLUMNS", str(columns))
        assert run_mrs(*words, "--help").code == 0
        return capsys.readouterr().out

    return read


def flags(text: str) -> set[str]:
    return set(
        re.findall(
            r"(?<![\w-])--?[a-z][a-z-]*", "\n".join(re.findall(r"^  -.*", text, re.MULTILINE))
        )
    )


def test_quantize_lists_what_it_uses(page) -> None:
    text = page(["quantize"])
    assert {"--isq", "--topology", "--imatrix", "--output"} <= flags(text)
    assert not {"--workers", "--max-seqs", "--lora", "--dtype", "--plan"} & flags(text)
    assert "gguf  " not in text
    assert text.count("-o, ") == 1  # where it is the output


@pytest.mark.parametrize("words", PAGES, ids=" ".join)
def test_nothing_is_cut_and_no_line_is_too_long(page, words):
    text = page(words)
    assert "..." not in text
    assert "[-]" not in text
    assert max(map(len, text.splitlines())) <= 80
    assert re.match(r"Usage: mrs( [a-z-]+)*( \[FLAGS\]| list)", text)


def test_summaries_of_commands_wrap(page):
    for columns in (60, 80, 100):
        text = " ".join(page([], columns).split())
        for command in TREE.commands.values():
            assert command.help in text


def test_a_narrow_page_has_room_for_its_texts(page):
    lines = page(["plan"], 60).partition("  Examples:")[0].splitlines()
    assert max(map(len, lines)) <= 60
    assert sum(len(line.split()) == 1 for line in lines) < 20


@pytest.mark.parametrize("command", ["plan", "bench"])
def test_only_flags_that_mean_something_are_listed(page, command):
    listed = flags(page([command]))
    wanted = PLACEMENT - ({"-n"} if command == "bench" else set())
    assert wanted <= listed
    assert not OF_A_REPLY & listed
    assert ("--prefix-cache-n" in listed) == (command == "plan")


def test_the_dash_for_standard_input_is_explained(page):
    assert re.search(r"^  - +Read prompts from standard input", page(["plain"]), re.MULTILINE)
