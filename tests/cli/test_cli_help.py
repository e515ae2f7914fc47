"""Help: short at first, whole with `all`, and only flags that mean something there."""

from __future__ import annotations

import re

import pytest

from mrs_cli.app import command_tree
from mrs_cli.parsing.help_texts import COMMAND_HELP

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
    """`page(["plan"], "all", columns=80)` is the whole help of `mrs plan`."""

    def read(words: list[str], *which: str, columns: int = 80) -> str:
        monkeypatch.setenv("COLUMNS", str(columns))
        assert run_mrs(*words, "--help", *which).code == 0
        return capsys.readouterr().out

    return read


def flags(text: str) -> set[str]:
    return set(
        re.findall(
            r"(?<![\w-])--?[a-z][a-z-]*", "\n".join(re.findall(r"^  -.*", text, re.MULTILINE))
        )
    )


def test_quantize_lists_what_it_uses(page) -> None:
    text = page(["quantize"], "all")
    assert {"--isq", "--dtype", "--topology", "--imatrix", "--output"} <= flags(text)
    assert not {"--workers", "--max-seqs", "--lora", "--plan"} & flags(text)
    assert "lora-gguf" not in text
    assert text.count("-o, ") == 1  # where it is the output


@pytest.mark.few(27)
@pytest.mark.parametrize("which", [(), ("all",)], ids=["short", "whole"])
@pytest.mark.parametrize("words", PAGES, ids=" ".join)
def test_nothing_is_cut_and_no_line_is_too_long(page, words, which):
    text = page(words, *which)
    assert "..." not in text.replace("]...", "")
    assert "[-]" not in text
    assert max(map(len, text.splitlines())) <= 80
    usage = (COMMAND_HELP[words[-1]].usage if words else "[COMMAND] -m MODEL [FLAGS]").split()
    assert text.split()[: len(words) + len(usage) + 2] == ["Usage:", "mrs", *words, *usage]


@pytest.mark.parametrize("words", PAGES, ids=" ".join)
def test_the_short_help_fits_a_screen_and_has_what_is_used_most(page, words):
    text = page(words)
    assert len(text.splitlines()) <= (48 if not words else 30)
    assert len(flags(text)) <= 2 * 15
    if "-m" in flags(page(words, "all")):
        assert re.search(r"^  -m(, --[a-z-]+)? ID ", text, re.MULTILINE)


def test_the_help_of_mrs_names_the_model_first_and_gives_two_examples(page):
    text = page([])
    assert re.search(r"^Flags:\n  -m, --model-id ID ", text, re.MULTILINE)
    assert len(re.findall(r"^  mrs ", text.partition("Examples:")[2], re.MULTILINE)) == 2


@pytest.mark.parametrize("words", [["serve"], ["plan"], ["embed"], ["run"]], ids=" ".join)
def test_the_whole_help_has_every_flag(page, words):
    command = TREE.commands[words[0]]
    visible = [p for p in command.params if not getattr(p, "hidden", False)]
    assert {p.opts[0] for p in visible if p.opts[0][:1] == "-" and p.opts[0].islower()} <= flags(
        page(words, "all")
    )
    assert "-m" in flags(page(words, "all"))
    assert flags(page(words)) < flags(page(words, "all"))


def test_summaries_of_commands_wrap(page):
    for columns in (60, 80, 100):
        text = " ".join(page([], "all", columns=columns).split())
        for name, command in TREE.commands.items():
            assert command.help == COMMAND_HELP[name].summary
            assert command.help in text


def test_a_narrow_page_has_room_for_its_texts(page):
    lines = page(["plan"], "all", columns=60).partition("Examples:")[0].splitlines()
    assert max(map(len, lines)) <= 60
    assert sum(len(line.split()) == 1 for line in lines) < 30


@pytest.mark.parametrize("command", ["plan", "bench"])
def test_only_flags_that_mean_something_are_listed(page, command):
    listed = flags(page([command], "all"))
    wanted = PLACEMENT - ({"-n"} if command == "bench" else set())
    assert wanted <= listed
    assert not OF_A_REPLY & listed
    assert ("--prefix-cache-n" in listed) == (command == "plan")


def test_the_dash_for_standard_input_is_explained(page):
    text = " ".join(page(["plain"], "all").split())
    assert "[QUESTION] The question, as with --prompt; - reads it from standard input" in text
