"""Saved chats: what was written comes back, and nothing else is taken for one."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from mrs.errors import UsageError
from mrs.process import files
from mrs.request import Sampling
from mrs_cli.chat.saved_chat import SavedChat, load, save

TURNS = [
    {"role": "user", "content": "Gr\u00f6\u00dfe \u2603?\nline \x1b[2J\x9b"},
    {"role": "assistant", "content": "42", "reasoning": "hm", "model": "a/model"},
]
CHAT = SavedChat(
    "a/model",
    "Be brief.",
    Sampling(temperature=0.7, top_k=0, stop=("a", "b"), logit_bias=((3, -1.5),)),
    TURNS,
)
#: As version 1 wrote it; what later versions write may differ, what they read may not.
VERSION_1 = """{
  "format": "mrs-chat", "version": 1, "saved": "2026-01-02T03:04:05+00:00", "model": "demo",
  "system": null,
  "sampling": {
    "temperature": 0.5, "top_k": null, "top_p": 0.9, "min_p": 0.05, "repetition_penalty": 1.0,
    "frequency_penalty": 0.1, "presence_penalty": 0.1, "max_tokens": 20, "stop": ["END"]
  },
  "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": ""}]
}"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "chat.json"


def test_what_is_saved_comes_back(file):
    assert save(CHAT, str(file)) == file
    assert load(str(file)) == CHAT
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert not set(file.read_text(encoding="utf-8")) & set("\x1b\x9b")
    assert [path.name for path in file.parent.iterdir()] == ["chat.json"]


def test_a_file_of_the_first_version(file):
    file.write_text(VERSION_1, encoding="utf-8")
    chat = load(str(file))
    assert chat.sampling == Sampling(
        0.5,
        0,
        0.9,
        0.05,
        frequency_penalty=0.1,
        presence_penalty=0.1,
        max_tokens=20,
        stop=("END",),
    )
    assert (chat.model_id, chat.system, chat.turns[0]["content"]) == ("demo", None, "Hi")


def test_thoughts_that_earlier_versions_pasted_into_the_answer_are_read(file):
    pasted = "<think>\\nhm\\n</think>\\n\\n42"
    old = '"role": "assistant", "content": ""'
    file.write_text(VERSION_1.replace(old, old[:-1] + pasted + '"'), encoding="utf-8")
    assert load(str(file)).turns[1] == {
        "role": "assistant",
        "content": "<think>\nhm\n</think>\n\n42",
        "model": "demo",
    }


def test_what_a_later_version_adds_is_passed_over_and_what_is_missing_has_its_default(file):
    sampling = {"temperature": 1.5, "mood": "good"}
    value = {"format": "mrs-chat", "version": 1, "sampling": sampling, "tree": [1]}
    file.write_text(json.dumps(value), encoding="utf-8")
    assert load(str(file)) == SavedChat("", None, Sampling(temperature=1.5), [], ("mood",))


def test_a_byte_order_mark_and_utf16_are_read(file):
    for encoding in ("utf-8-sig", "utf-16"):
        file.write_text(VERSION_1, encoding=encoding)
        assert load(str(file)).turns


def test_every_truncation_is_refused(file):
    save(CHAT, str(file))
    content = file.read_bytes().rstrip()
    for length in range(0, len(content), 7):
        file.write_bytes(content[:length])
        with pytest.raises(UsageError, match="is damaged, or not a saved chat"):
            load(str(file))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"\xff\xfe\xfd\x00", "not a saved chat"),
        (b"GGUF\x03\x00\x00\x00", "not a saved chat"),
        (b"[" * 100_000, "not a saved chat"),
        (b"1" * 10_000, "not a saved chat"),
        (b'{"model_type": "llama"}', "not a saved chat"),
        (b'[{"role": "user", "content": "Hi"}]', "not a saved chat"),
        (b"null", "not a saved chat"),
        (b'{"format": "mrs-chat"}', "no version"),
        (b'{"format": "mrs-chat", "version": true}', "no version"),
        (b'{"format": "mrs-chat", "version": 2}', "up to 1: load it with a newer mrs"),
    ],
)
def test_foreign_and_newer_files(file, content, why):
    file.write_bytes(content)
    with pytest.raises(UsageError, match=why) as caught:
        load(str(file))
    assert str(file) in str(caught.value)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"system": 3}, "system prompt is not a text"),
        ({"sampling": []}, "sampling is not an object"),
        ({"sampling": {"temperature": 101}}, "temperature is 101"),
        ({"sampling": {"temperature": None}}, "temperature is None"),
        ({"sampling": {"temperature": True}}, "temperature is True"),
        ({"sampling": {"top_p": float("nan")}}, "top-p is nan"),
        ({"sampling": {"max_tokens": [1]}}, "max-tokens"),
        ({"sampling": {"stop": 3}}, "stop is 3"),
        ({"sampling": {"stop": [""]}}, r"stop is \["),
        ({"sampling": {"logit_bias": 3}}, "logit-bias is 3"),
        ({"sampling": {"logit_bias": [[3, None]]}}, r"logit-bias is \[\["),
        ({"messages": {}}, "messages are not a list"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "message 1 is not from the user"),
        ({"messages": ["x"]}, "message 1 is not from the user"),
        ({"messages": [{"role": "user"}]}, "message 1 has no text"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "message 1 has no text"),
        ({"messages": TURNS[:1]}, "last message has no reply"),
        (
            {"messages": [TURNS[0], {**TURNS[1], "reasoning": 3}]},
            "the reasoning of message 2 is not that of a reply",
        ),
        (
            {"messages": [{**TURNS[0], "reasoning": "hm"}, TURNS[1]]},
            "the reasoning of message 1 is not that of a reply",
        ),
        ({"messages": [TURNS[0], TURNS[0]]}, "message 2 is not from the assistant"),
    ],
)
def test_damaged_files(file, change, why):
    file.write_text(json.dumps({**json.loads(VERSION_1), **change}), encoding="utf-8")
    with pytest.raises(UsageError, match=why) as caught:
        load(str(file))
    assert "\n" not in str(caught.value)


def test_what_is_no_file_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name in (
        tmp_path,
        tmp_path / "pipe",
        tmp_path / "none",
        "/dev/zero",
        "a\0b",
        "~nobody-x/a",
    ):
        with pytest.raises(UsageError):
            load(str(name))
        with pytest.raises(UsageError):
            save(CHAT, f"{name}/x" if name == tmp_path / "none" else str(name))


def test_only_a_saved_chat_is_replaced(file):
    file.write_text("my notes", encoding="utf-8")
    with pytest.raises(UsageError, match="exists and is not a saved chat"):
        save(CHAT, str(file))
    assert file.read_text(encoding="utf-8") == "my notes"
    file.write_text(VERSION_1, encoding="utf-8")
    save(CHAT, str(file))
    assert load(str(file)) == CHAT


def test_a_link_stays_a_link(file):
    link = file.with_name("link.json")
    link.symlink_to(file.name)
    save(CHAT, str(link))
    assert link.is_symlink()
    assert load(str(file)) == CHAT


def test_a_name_may_be_as_long_as_the_file_system_allows(file):
    long = file.with_name("c" * 250 + ".json")
    save(CHAT, str(long))
    assert load(str(long)) == CHAT


def test_a_write_that_fails_leaves_the_file_as_it_was(file, monkeypatch):
    file.write_text(VERSION_1, encoding="utf-8")

    def fails(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", fails)
    with pytest.raises(UsageError, match="cannot be written \\(No space left on device\\)"):
        save(CHAT, str(file))
    assert file.read_text(encoding="utf-8") == VERSION_1
    assert [path.name for path in file.parent.iterdir()] == ["chat.json"]
