"""The chat in a pipe: every command works there, replies on standard output, all else beside."""

from __future__ import annotations

import json

import pytest
from mrs_runs import Terminal

from mrs.request import Sampling
from mrs_cli.chat.chat_settings import setting_names
from mrs_cli.chat.command_table import COMMANDS, parse_command


def lines(run_mrs, *said: str, flags=()):
    return run_mrs("-i", *flags, "plain", "-m", "x", "-q", stdin="\n".join(said) + "\n")


def test_turns_are_remembered(run_mrs):
    ran = lines(run_mrs, "snow", "history")
    assert ran.code == 0
    assert ran.out.splitlines()[1] == (
        "You said: user=snow assistant=\u2603 snow, d\u00e9j\u00e0 vu"
    )


def test_statistics_go_to_standard_error_if_they_are_asked_for(run_mrs):
    line = "first token 0.05 s · prompt 10 tokens, 200/s · reply 6 tokens, 10.0/s"
    assert run_mrs("-i", "plain", "-m", "x", stdin="hello\n").err.splitlines()[1:] == []
    assert run_mrs("-i", "-v", "plain", "-m", "x", stdin="hello\n").err.splitlines()[1:] == [line]
    said = "\\set verbose\nhello\n/set quiet\nhello\n"
    assert run_mrs("-i", "plain", "-m", "x", stdin=said).err.splitlines()[1:] == [
        "statistics after each reply are on",
        line,
        "statistics after each reply are off",
    ]


@pytest.mark.parametrize("word", ["\\exit", "/bye", "\\quit", "/exit"])
def test_commands_leave_a_chat(run_mrs, word):
    ran = run_mrs("-i", "plain", "-m", "x", stdin=f"hello\n{word}\nsnow\n")
    assert (ran.code, len(ran.models[0].asked)) == (0, 1)


@pytest.mark.parametrize("word", ["exit", "quit", "Exit "])
def test_a_word_leaves_a_chat_of_a_person_and_is_a_message_in_a_pipe(run_mrs, monkeypatch, word):
    read = iter([f"{word}\n", f" {word}\n", ""])
    ran = run_mrs("-i", "plain", "-m", "x", stdin=f"{word}\n")
    assert [each[0][-1]["content"] for each in ran.models[0].asked] == [word]
    monkeypatch.setattr(Terminal, "readline", lambda self: next(read))
    assert run_mrs("-i", "plain", "-m", "x", stdin=None).models[0].asked == []
    ran = run_mrs("-i", "plain", "-m", "x", stdin=None)
    assert [each[0][-1]["content"] for each in ran.models[0].asked] == [f" {word}"]


def test_a_question_mark_is_help(run_mrs):
    for command in ("/?", "\\?", "\\help"):
        ran = run_mrs("-i", "plain", "-m", "x", stdin=f"{command}\n")
        assert "\\undo" in ran.err
        assert ran.models[0].asked == []


def test_a_prompt_is_asked_first(run_mrs):
    ran = lines(run_mrs, "history", flags=["-P", "snow"])
    assert len(ran.out.splitlines()) == 2
    assert "user=snow" in ran.out


@pytest.mark.parametrize("mark", ["\\", "/"])
def test_commands(run_mrs, mark):
    ran = lines(
        run_mrs,
        "hello",
        f"{mark}system Speak  plainly.",
        f"{mark}clear",
        f"{mark}temperature 0.7",
        f"{mark}topk 9",
        f"{mark}topp 0.9",
        "history",
        f"{mark}exit",
        "never asked",
    )
    assert ran.out.splitlines()[1] == "You said: system=Speak  plainly."
    (messages, sampling) = ran.models[0].asked[-1]
    assert len(ran.models[0].asked) == 2
    assert len(messages) == 2
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.7, 9, 0.9)
    assert isinstance(sampling.top_k, int)


def test_help_lists_every_command(run_mrs):
    ran = run_mrs("-i", "plain", "-m", "x", stdin="\\help\n")
    assert len(COMMANDS) >= 7
    assert all(f"\\{command.name}" in ran.err for command in COMMANDS)
    assert ran.out == ""


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        ("\\hepl", "unknown command \\hepl: did you mean \\help?"),
        ("/zzz", "unknown command \\zzz: \\help lists the commands"),
        ("\\temperature 101", "temperature 101 is out of range: give a number from 0 to 100"),
        ("\\topk -2", "top-k -2 is out of range: give a whole number from -1 to 2147483647"),
        ("\\topk 1.5", "top-k 1.5 is not a whole number"),
        ("\\topp 1.1", "top-p 1.1 is out of range"),
        ("\\topp nan", "top-p nan is out of range"),
        ("\\min-p 2", "min-p 2 is out of range"),
        ("\\clear all", "\\clear takes no argument"),
    ],
)
def test_a_wrong_command_gets_a_hint_and_the_chat_goes_on(run_mrs, said, hint):
    ran = lines(run_mrs, said, "hello")
    assert ran.code == 0
    assert hint in ran.err
    assert ran.err.count("\n") == 1
    assert ran.out == "Hello! I am a **fake** model.\n"


@pytest.mark.few(8)
@pytest.mark.parametrize("name", setting_names())
def test_every_setting_is_a_command_like_set(run_mrs, name):
    values = {
        "logit-bias": "1=2",
        "repetition-penalty": "2",
        "top-p": "0.5",
        "typical-p": "0.5",
        "reasoning-effort": "low",
    }
    value = values.get(name, "1")
    ran = lines(run_mrs, f"\\set {name} {value}", "hello")
    for spelled in (name, name.replace("-", "_"), name.replace("-", "").upper()):
        again = lines(run_mrs, f"\\{spelled} {value}", "hello")
        assert again.models[0].asked == ran.models[0].asked
        assert again.err == ran.err
    assert Sampling() not in [sampling for _, sampling in ran.models[0].asked]


def test_confirmations_read_alike(run_mrs):
    said = ["\\temperature 0", "\\set temperature 0", "\\topk 3", "\\system Be  brief."]
    ran = run_mrs("-i", "plain", "-m", "x", stdin="\n".join([*said, "\\temperature"]) + "\n")
    assert ran.err.splitlines()[1:] == [
        "temperature is now 0",
        "temperature is now 0",
        "top-k is now 3",
        "system prompt is now Be brief.",
        "temperature is 0",
    ]


@pytest.mark.parametrize(
    ("said", "asked"),
    [
        (['"""one', "two", 'three"""', "history"], "one\ntwo\nthree"),
        (['"""', "one", "", '"""', "history"], "one\n"),
        (['"""\\exit"""'], " \\exit"),
        (['"""never closed', "at all"], "never closed\nat all"),
        (['a """quote""" within'], 'a """quote""" within'),
        (['"""doc""" and more'], '"""doc""" and more'),
    ],
)
def test_three_quotes_hold_a_text_of_several_lines(run_mrs, said, asked):
    ran = lines(run_mrs, *said)
    assert ran.models[0].asked[-1][0][0]["content"] == asked
    assert len(ran.models[0].asked) == (2 if "history" in said else 1)


def test_three_quotes_after_a_command(run_mrs):
    ran = lines(run_mrs, '\\system """Be', 'brief."""', "hello")
    assert ran.models[0].asked[0][0][0] == {"role": "system", "content": "Be\nbrief."}


@pytest.mark.parametrize(
    "text",
    ["\\min-x 1", "/usr-bin", "/usr/bin/env", "\\frac{1}{2}", " \\exit", "a /exit", "\\", "//"],
)
def test_messages_that_only_look_like_commands(text):
    assert parse_command(text) is None


def test_a_command_may_hold_many_lines():
    assert parse_command("\\system one\ntwo") == ("system", "one\ntwo")


def test_json_in_a_chat(run_mrs):
    ran = lines(run_mrs, "hello", "\\topk 3", "snow", flags=["--json"])
    assert [json.loads(line)["completion_tokens"] for line in ran.out.splitlines()] == [6, 4]


def test_an_error_ends_a_chat_that_nobody_attends(run_mrs):
    ran = lines(run_mrs, "broken", "hello")
    assert (ran.code, ran.out) == (3, "")


def test_the_chat_survives_an_error_where_somebody_attends(run_mrs, monkeypatch):
    monkeypatch.setattr(Terminal, "readline", lambda self: next(said))
    said = iter(["broken\n", "history\n", ""])
    ran = run_mrs("-i", "plain", "-m", "x", "-q", stdin=None)
    assert (ran.code, ran.out) == (0, "You said: none\n")
    assert "a tensor is truncated" in ran.err
