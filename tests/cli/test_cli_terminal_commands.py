"""Chats of ten turns with every command, in a real terminal."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from mrs_runs import PROMPT, REAL_MRS

from mrs_cli.chat.command_table import COMMANDS
from support.suites import first

pytest.importorskip("pexpect")

#: The terminal may be too narrow for what comes before the reply's tokens.
STATISTICS = r"(?s)reply \d+ tokens"
#: What each command shows in the chat below, in order; None for a message.
SCRIPT: tuple[tuple[str, str | None], ...] = (
    ("Who are you?", None),
    ("\\help", r"\\help +show this list"),
    ("\\system Be brief.", "system prompt is now Be brief"),
    ("\\tokens", r"context: [\d,]+ of [\d,]+ tokens used.*last reply: \d+ tokens"),
    ("What is 3 + 4?", None),
    ("\\retry", None),
    ("\\temperature 0.5", "temperature is now 0.5"),
    ("\\topk 5", "top-k is now 5"),
    ("\\topp 0.5", "top-p is now 0.5"),
    ("\\adapter", "no adapter is loaded"),
    ("\\set max-tokens 16", "max-tokens is now 16"),
    ("\\set", r"presence-penalty +0"),
    ("What is a KV cache?", None),
    ("\\edit What is a GPU?", None),
    ("\\export {file}", "3 turns saved to"),
    ("\\title Of machines", "title is now Of machines"),
    ("\\fork", r"this is now the session Of machines \(fork\)"),
    ("\\undo", r"removed: What is a GPU\?"),
    ("Name a colour.", None),
    ("And another one?", None),
    ("\\new", r"new session; \\sessions lists the earlier ones"),
    ("\\sessions", r"1 +Of machines \(fork\) +4 +.*2 +Of machines +3"),
    ("\\open {file}", r"3 turns loaded, from a chat with demo.*last message: What is a GPU\?"),
    ("\\plan", r"planned +layers.*cpu +0\u2013\d.*now +used +free"),
    ("\\attach {file}", r"a chat.json [\d,]+ characters"),
    ("\\detach", "nothing is attached any more"),
    ("\\model", "model is "),
    ("\\tools", "there are no tools"),
    ("What did I ask?", None),
    ("Thank you.", None),
    ("Bye.", None),
    ("\\delete nosuch", "there is no session nosuch"),
    ("\\exit", ""),
)


def chat_through(child, script, file: Path) -> None:
    for said, shown in script:
        child.send(said.format(file=file) + "\r")
        child.expect(STATISTICS if shown is None else f"(?s){shown}")
        if said != "\\exit":
            child.expect_exact(PROMPT)


def exit_code_of(child) -> int:
    from pexpect import EOF

    child.expect(EOF)
    child.wait()
    return child.exitstatus


@pytest.mark.full
@pytest.mark.parametrize("model", first(1, ["fake", "demo"]))
def test_ten_turns_with_every_command(chat, model, tmp_path):
    used = {said.split()[0] for said, _ in SCRIPT if said.startswith("\\")}
    assert used == {f"\\{command.name}" for command in COMMANDS}
    assert sum(shown is None for _, shown in SCRIPT) == 10
    file = tmp_path / "a chat.json"
    flags = {"command": REAL_MRS, "timeout": 120} if model == "demo" else {}
    child = chat("--max-tokens", "40", **flags)
    chat_through(child, SCRIPT, file)
    assert exit_code_of(child) == 0
    saved = json.loads(file.read_text(encoding="utf-8"))
    asked = [m["content"] for m in saved["messages"] if m["role"] == "user"]
    assert asked == ["Who are you?", "What is 3 + 4?", "What is a GPU?"]
    assert all(m["content"] for m in saved["messages"])
    assert (saved["system"], saved["sampling"]["top_k"]) == ("Be brief.", 5)


@pytest.mark.full
def test_edit_fills_the_line(chat):
    child = chat()
    child.send("one\r")
    child.expect(STATISTICS)
    child.expect_exact(PROMPT)
    child.send("\\edit\r")
    child.expect("one")
    child.send(" two\r")
    child.expect("You said: one two")
    child.expect_exact(PROMPT)
    child.send("\\edit\r")
    child.expect("one two")
    child.sendintr()  # leaves the line, not the chat
    child.expect_exact(PROMPT)
    child.send("history\r")
    child.expect("You said: user=one two assistant=You said: one two")


@pytest.mark.full
def test_tab_completes_commands_settings_and_files(chat, tmp_path):
    (tmp_path / "chats of mine").mkdir()
    child = chat(cwd=tmp_path)
    for typed, completion, rest, shown in (
        ("\\und", "o", "", "there is no message yet"),
        ("/set pres", "ence-penalty", "", "presence-penalty is 0"),
        ("\\save ./chats", "mine", "/a.json", "0 turns"),
    ):
        child.send(f"{typed}\t")
        child.expect_exact(completion)
        child.send(f"{rest}\r")
        child.expect_exact(shown)
        child.expect_exact(PROMPT)
    assert (tmp_path / "chats of mine" / "a.json").exists()
    child.send("hel\tlo\r")
    child.expect_exact("fake")


@pytest.mark.full
@pytest.mark.parametrize("variable", first(1, ["VISUAL", "EDITOR"]))
def test_a_key_opens_the_editor_and_enter_sends(chat, tmp_path, variable):
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nprintf " and\\nmore" >> "$1"\n', encoding="utf-8")
    editor.chmod(0o755)
    child = chat(**{variable: str(editor)})
    child.send("begun\x18\x05")
    child.expect("more")
    child.send("\r")
    child.expect("You said: begun.* and")


@pytest.mark.full
def test_thoughts_are_dim_and_their_tags_gone(chat):
    child = chat(FAKE_DELAY_S="0.02")
    child.send("think\r")
    child.expect(STATISTICS)
    shown = child.before
    assert "</think>" not in shown
    thought, answer = shown.rsplit("riddle", 1)
    assert re.search("\x1b\\[2m[^\x1b]*It is a", thought)
    assert re.search("\x1b\\[0m.*The answer is", answer, re.DOTALL)
    assert not re.search("\x1b\\[2m[^\x1b]*The answer", answer)
    assert answer.count("<think>") >= 1


@pytest.mark.full
def test_a_full_context_asks_before_it_drops(chat):
    child = chat("-m", "small")
    for said in ("one", "two"):
        child.send(f"{said}\r")
        child.expect(STATISTICS)
        child.expect_exact(PROMPT)
    child.setwinsize(24, 40)
    child.send("four five six seven\r")
    child.expect(r"context\s+holds\s+12\.\s")
    child.expect_exact("Drop the oldest turn? (y/n)")
    child.send("n")
    child.expect_exact("the message was not sent")
    child.expect_exact(PROMPT)
    child.send("\\retry\r")
    child.expect_exact("Drop the oldest turn? (y/n)")
    child.send("y")
    child.expect("You said: four five six seven")
    child.expect(STATISTICS)
