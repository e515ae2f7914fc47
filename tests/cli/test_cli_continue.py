"""A chat is kept when it ends, and goes on with --continue."""

from __future__ import annotations

import json
import os
import signal
import stat
from pathlib import Path

import pytest
from mrs_runs import PROMPT, Ran

from support.suites import first

pexpect = pytest.importorskip("pexpect")

STATISTICS = "first token 0.05 s"


def chats() -> list[Path]:
    return sorted((Path(os.environ["XDG_STATE_HOME"]) / "mrs" / "chats").glob("*"))


def asked(ran: Ran) -> list[str]:
    return [message["content"] for message in ran.models[0].asked[-1][0]]


def test_a_chat_goes_on(talk):
    talk("hello", "\\temperature 0.5", "\\system Be brief.", model="first")
    ran = talk("more", flags=["--continue"], model="/a/folder/second")
    assert asked(ran) == ["Be brief.", "hello", "Hello! I am a **fake** model.", "more"]
    assert ran.models[0].asked[-1][1].temperature == 0.5
    assert "1 turn loaded, from a chat with first" in ran.err
    assert "last message: hello" in ran.err
    ran = talk("again", flags=["--continue"])
    assert len(asked(ran)) == 6
    assert "2 turns loaded, from a chat with second" in ran.err


@pytest.mark.parametrize("flags", [["-i", "--continue"], ["--continue"], ["run", "--continue"]])
def test_a_chat_goes_on_with_its_model_if_none_is_named(talk, run_mrs, flags):
    talk("hello", model="demo")
    ran = run_mrs(*flags, stdin="more\n")
    assert (ran.code, ran.request.source.model_id) == (0, "demo")
    assert asked(ran) == ["hello", "Hello! I am a **fake** model.", "more"]
    assert run_mrs(*flags, "plain", "-m", "x", stdin="").code == (2 if "run" in flags else 0)


def test_a_thought_is_kept_apart_from_its_answer(talk):
    talk("think")
    ran = talk("more", flags=["--continue"])
    _, reply, _ = ran.models[0].asked[-1][0]
    assert (reply["reasoning"], reply["content"]) == (
        "It is a *riddle*.",
        "The answer is `<think>`.",
    )


def test_flags_go_before_what_was_kept(talk):
    talk("\\system Be brief.", "\\temperature 0.5", "\\set top-k 3", "hello")
    ran = talk("more", flags=["--continue", "--temperature", "1", "--system", "Be long."])
    sampling = ran.models[0].asked[-1][1]
    assert (asked(ran)[0], sampling.temperature, sampling.top_k) == ("Be long.", 1, 3)


def test_only_the_owner_may_read_them(talk):
    talk("hello")
    (chat,) = chats()
    assert stat.S_IMODE(chat.stat().st_mode) == 0o600
    assert stat.S_IMODE(chat.parent.stat().st_mode) == 0o700


def test_nothing_to_keep(talk, run_mrs):
    talk("\\system Be brief.")
    talk("hello", "\\undo")
    run_mrs("-i", "plain", "-m", "x", stdin="hello\n")  # nobody attends a pipe
    assert chats() == []
    talk("hello")
    talk(flags=["--continue"])  # nothing new was said
    assert len(chats()) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-i", "--continue"], "there is no chat to continue: leave out --continue"),
        (["--continue"], "there is no chat to continue: leave out --continue"),
    ],
)
def test_no_chat_to_go_on_with(run_mrs, words, said):
    ran = run_mrs(*words, "plain", "-m", "x", stdin="hello\n")
    assert (ran.code, ran.models) == (2, [])
    assert ran.err == f"mrs: error: {said}\n"


def test_a_damaged_one_is_said(talk):
    talk("hello")
    chats()[0].write_text("{")
    ran = talk("more", flags=["--continue"])
    assert (ran.code, ran.models) == (2, [])
    assert "is damaged, or not a saved chat" in ran.err


def test_a_folder_that_cannot_be_written_changes_nothing(talk, monkeypatch):
    state = Path(os.environ["XDG_STATE_HOME"]) / "file"
    state.touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    ran = talk("hello", "hello")
    assert (ran.code, ran.out) == (0, "Hello! I am a **fake** model.\n" * 2)
    assert ran.err.count("this session is not kept: Not a directory") == 1


@pytest.mark.full
@pytest.mark.parametrize("leave", first(1, ["\x04", signal.SIGTERM, "\\exit\r", "\x03\x03"]))
def test_however_a_chat_on_a_terminal_ends(chat, process_env, leave):
    child = chat()
    child.send("hello\r")
    child.expect_exact(STATISTICS)
    child.expect_exact(PROMPT)
    if isinstance(leave, str):
        child.send(leave)
    else:
        child.kill(leave)
    child.expect(pexpect.EOF)
    child.wait()
    (kept,) = (Path(process_env["XDG_STATE_HOME"]) / "mrs" / "chats").glob("*")
    assert json.loads(kept.read_text())["messages"][0]["content"] == "hello"
