"""Prompts from the command line and from pipes: what goes where, and how it ends."""

from __future__ import annotations

import json
import logging
import os
import stat

import fake_model
import pytest

from mrs_cli.commands.stdin_prompts import PipedLines

SUMMARY = "fake: a book of answers on cpu, 1.00 MiB\n"


def test_a_prompt_is_answered_and_nothing_else_is_on_standard_output(run_mrs):
    ran = run_mrs("plain", "-m", "demo", "-P", "hello", stdin=None)
    assert (ran.code, ran.out, ran.err) == (0, "Hello! I am a **fake** model.\n", SUMMARY)
    assert ran.models[0].closed


def test_quiet_says_only_the_reply(run_mrs):
    assert run_mrs("-q", "plain", "-m", "x", "-P", "hello").err == ""


def test_verbose_adds_statistics(run_mrs):
    ran = run_mrs("plain", "-m", "x", "-P", "hello", "-v")
    assert ran.err == SUMMARY + (
        "first token 0.05 s · prompt 10 tokens, 200/s · reply 6 tokens, 10.0/s\n"
    )


@pytest.mark.parametrize("dash", [[], ["-"]])
def test_each_line_of_standard_input_is_a_prompt_of_its_own(run_mrs, dash):
    ran = run_mrs("--each-line", "plain", "-m", "x", *dash, stdin="hello\n\nhistory\r\nlast")
    assert ran.code == 0
    assert ran.out == "Hello! I am a **fake** model.\nnone\nYou said: last\n".replace(
        "none", "You said: none"
    )


def test_an_empty_pipe_is_an_error(run_mrs):
    ran = run_mrs("plain", "-m", "x", stdin="\n \n")
    assert ran.code == 2
    assert "standard input has no prompt" in ran.err


@pytest.mark.parametrize("dash", [[], ["-"]])
def test_standard_input_is_one_prompt_or_follows_one(run_mrs, dash):
    def asked(*words: str) -> list[str]:
        ran = run_mrs(*words, *dash, stdin="def f():\n    pass\n\n")
        assert ran.code == 0
        return [messages[-1]["content"] for messages, _ in ran.models[0].asked]

    text = "def f():\n    pass"
    assert asked("plain", "-m", "x") == [text]
    assert asked("plain", "-m", "x", "-P", "Explain") == [f"Explain\n\n{text}"]
    assert asked("-m", "demo", "-P", "Is {stdin} right? {}") == [f"Is {text} right? {{}}"]
    ask = ["--each-line", "-P", "Translate", "-m", "demo"]
    assert asked(*ask) == ["Translate\n\ndef f():", "Translate\n\n    pass"]


def test_a_prompt_needs_no_standard_input(run_mrs):
    for stdin in ("", "\n", None):
        ran = run_mrs("plain", "-m", "x", "-P", "hello", stdin=stdin)
        assert ran.out == "Hello! I am a **fake** model.\n"


def test_lines_of_json_are_answered_with_lines_of_json(run_mrs):
    lines = ['{"prompt": "hello", "id": 7}', "", '{"prompt": "history", "system": "Be brief."}']
    ran = run_mrs("--jsonl", "-m", "demo", "--system", "Be long.", stdin="\n".join(lines))
    first, second = map(json.loads, ran.out.splitlines())
    assert (first["id"], first["text"]) == (7, "Hello! I am a **fake** model.")
    assert "id" not in second
    assert second["text"] == "You said: system=Be brief."
    assert ran.models[0].asked[0][0][0]["content"] == "Be long."


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 2 is not JSON"),
        ("[" * 100_000, "line 2 is not JSON"),
        ('{"text": "a"}', "line 2 has no prompt"),
        ('"a"', "line 2 has no prompt"),
        ('{"prompt": "a", "temperature": 0}', "line 2 has an unknown field temperature"),
        ('{"prompt": "a", "system": 1}', "the system prompt of line 2 is not a text"),
    ],
)
def test_a_wrong_line_of_json_is_named_in_its_turn(run_mrs, line, said):
    ran = run_mrs("--jsonl", "-m", "demo", stdin=f'{{"prompt": "hello"}}\n{line}\n')
    assert (ran.code, ran.err.count("\n")) == (2, 2)
    assert said in ran.err
    assert len(ran.out.splitlines()) == 1


def test_lines_need_no_chat(run_mrs):
    for flag in ("--each-line", "--jsonl"):
        ran = run_mrs(flag, "-i", "-m", "demo", stdin="hello\n")
        assert (ran.code, ran.models) == (2, [])
        assert f"{flag} and -i exclude each other" in ran.err
    assert run_mrs("--jsonl", "-P", "a", "-m", "demo", stdin="hello\n").code == 2


def test_a_pipe_that_stays_open_is_said_to_be_waited_for(run_mrs, monkeypatch):
    monkeypatch.setattr(PipedLines, "is_empty_for", lambda self, seconds: True)
    ran = run_mrs("-m", "demo", "-P", "hello", stdin="more")
    assert "waiting for standard input to end; < /dev/null leaves it out" in ran.err
    assert "waiting" not in run_mrs("-m", "demo", stdin="more").err


def test_json(run_mrs):
    ran = run_mrs("--json", "--each-line", "plain", "-m", "x", stdin="snow\nevil\n")
    first, second = map(json.loads, ran.out.splitlines())
    assert first == {
        "server": None,
        "text": "\u2603 snow, d\u00e9j\u00e0 vu",
        "finish_reason": "stop",
        "prompt_tokens": 10,
        "completion_tokens": 4,
        "cached_tokens": 0,
        "reasoning_tokens": 0,
        "drafts": 0,
        "drafted_tokens": 0,
        "accepted_tokens": 0,
        "drafted_by_position": [],
        "accepted_by_position": [],
        "draft_gain": None,
        "planned_prompt_tokens_per_s": None,
        "planned_completion_tokens_per_s": None,
        "prompt_s": 0.05,
        "completion_s": 0.5,
        "prompt_tokens_per_s": 200.0,
        "completion_tokens_per_s": 6.0,
    }
    assert second["text"] == "before\x1b[2J\x1b]0;owned\x07\x9b31mafter\rend"
    assert not set(ran.out) & set("\x1b\x9b\x07\r")


def test_a_reply_cannot_send_escape_codes(run_mrs):
    ran = run_mrs("plain", "-m", "x", "-P", "evil")
    assert ran.out == "before[2J]0;owned31mafterend\n"


def test_an_empty_reply_is_an_empty_line(run_mrs):
    assert run_mrs("plain", "-m", "x", "-P", "empty").out == "\n"


def test_system_prompt_comes_first(run_mrs):
    ran = run_mrs("plain", "-m", "x", "--system", "Be brief.", "-P", "hello")
    assert ran.models[0].asked[0][0] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hello"},
    ]


def test_a_model_without_template_continues_the_text(run_mrs):
    ran = run_mrs("plain", "-m", "no-template", "-P", "Once upon")
    assert ran.models[0].asked[0][0] == "Once upon"
    ran = run_mrs("plain", "-m", "no-template", "-P", "a", "--system", "b")
    assert (ran.code, ran.out) == (2, "")


def test_the_log_has_every_request_and_response(run_mrs, tmp_path):
    log = tmp_path / "log.jsonl"
    for _ in range(2):
        words = ["--each-line", "-l", str(log), "plain", "-m", "x"]
        assert run_mrs(*words, stdin="hello\nsnow\n").code == 0
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    assert [line["kind"] for line in lines] == ["request", "response"] * 4
    assert lines[0]["messages"] == [{"role": "user", "content": "hello"}]
    assert lines[0]["sampling"]["temperature"] == 0.7
    assert lines[1]["text"] == "Hello! I am a **fake** model."
    assert lines[1]["usage"]["completion_tokens"] == 6
    assert {line["model"] for line in lines} == {"x"}
    if os.name == "posix":
        assert stat.S_IMODE(log.stat().st_mode) == 0o600, "prompts are nobody else's"


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (
            ["plain", "-m", "missing", "-P", "a"],
            3,
            "mrs: error: no such model (missing): give a folder that exists\n",
        ),
        (
            ["plain", "-m", "bug", "-P", "a"],
            1,
            "mrs: error: internal error: ZeroDivisionError: a bug; -vv shows where\n",
        ),
        (
            ["-q", "plain", "-m", "x", "-P", "broken"],
            3,
            "mrs: error: a tensor is truncated (model.safetensors)\n",
        ),
        (
            ["-i", "plain", "-m", "no-template", "-q"],
            5,
            "mrs: error: the model has no chat template: give one with --chat-template FILE\n",
        ),
    ],
)
def test_errors_are_one_line(run_mrs, arguments, code, line):
    ran = run_mrs(*arguments)
    assert (ran.code, ran.err) == (code, line)


@pytest.mark.parametrize("flags", [["-vv"], ["-v", "-v"], ["-vvq"], ["--verbose", "--verbose"]])
def test_two_v_show_the_traceback(run_mrs, flags):
    ran = run_mrs("plain", "-m", "bug", "-P", "a", *flags)
    assert ran.code == 1
    assert ran.err.startswith("Traceback (most recent call last):")
    assert ran.err.endswith("mrs: error: internal error: ZeroDivisionError: a bug\n")


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([], ["mrs: warning: 3 layers are on the CPU"]),
        (["-v"], ["mrs: warning: 3 layers are on the CPU", "mrs: info: 4 layers in all"]),
        (["-q"], []),
    ],
)
def test_what_the_core_logs_is_shown_as_loudly_as_asked(run_mrs, monkeypatch, flags, expected):
    def stream(self, messages, sampling):
        logging.getLogger("mrs.plan").warning("3 layers\nare on the CPU")
        logging.getLogger("mrs.plan").info("4 layers in all")
        return self._reply("hello", messages)

    monkeypatch.setattr(fake_model.FakeModel, "stream_chat", stream)
    ran = run_mrs("plain", "-m", "x", "-P", "a", *flags)
    assert [line for line in ran.err.splitlines() if line.startswith("mrs: ")] == expected
