"""Each chat is a session that can be found, opened, copied, named, exported and deleted."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from mrs_runs import Ran

from mrs.errors import UsageError
from mrs.request import Sampling
from mrs_cli.chat import saved_chat, session_store
from mrs_cli.chat.chat_message import TextFile
from mrs_cli.chat.saved_chat import SavedChat, load, save
from mrs_cli.chat.session_store import SessionFile, find_session, stored_sessions

HELLO = "Hello! I am a **fake** model."


def rows(text: str) -> list[tuple[str, str]]:
    """Numbers and titles of a list."""
    return re.findall(r"^ *(\d+)  (.+?)  +\d*  ", text, re.MULTILINE)


def titles(text: str) -> list[str]:
    return [title for _, title in rows(text)]


def asked(ran: Ran) -> list[str]:
    return [message["content"] for message in ran.models[0].asked[-1][0]]


@pytest.fixture
def three(talk) -> None:
    """Sessions, the oldest first: a poem, snow in two turns, and one with a title."""
    talk("poem", model="first")
    talk("snow", "hello")
    talk("hello", "\\title A long walk")
    for age, stored in enumerate(stored_sessions()):
        os.utime(stored.path, (1e9 - age, 1e9 - age))


@pytest.mark.usefixtures("three")
def test_the_newest_comes_first_and_words_find_titles_and_texts(talk):
    assert titles(talk("\\sessions").err) == ["A long walk", "snow", "poem"]
    assert titles(talk("\\sessions VIOLETS blue").err) == ["poem"]
    assert titles(talk("\\sessions walk").err) == ["A long walk"]
    assert "no session has the words violets snow" in talk("\\sessions violets snow").err


@pytest.mark.usefixtures("three")
def test_a_list_ends_and_says_so(talk, monkeypatch):
    monkeypatch.setattr(session_store, "MAX_LISTED", 2)
    ran = talk("\\sessions", "\\sessions o")
    assert titles(ran.err) == ["A long walk", "snow"] * 2
    assert ran.err.count("and 1 more: words after the command search all") == 2


@pytest.mark.few(1)
@pytest.mark.parametrize("columns", [80, 100, 200])
def test_a_list_is_no_wider_than_the_terminal(talk, run_mrs, monkeypatch, columns: int):
    talk("A question of many words, to which nobody needs an answer today, or ever", model="m" * 50)
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = run_mrs("sessions").out.splitlines()
    assert max(map(len, lines)) <= columns
    assert "A question of" in lines[1]


def test_a_session_that_is_too_large_is_said_once(talk, monkeypatch):
    monkeypatch.setattr(saved_chat, "MAX_FILE_BYTES", 2000)
    ran = talk("long", "hello")
    assert ran.err.count("this session is not kept: the conversation has more than 0 MiB") == 1
    assert stored_sessions() == []


@pytest.mark.usefixtures("three")
@pytest.mark.parametrize(
    ("said", "name"),
    [(["\\sessions"], "2"), ([], "2"), (["\\sessions déjà"], "1"), ([], "SNOW"), ([], "ID")],
)
def test_a_session_is_opened_by_number_title_or_id(talk, said, name):
    name = find_session("snow").id if name == "ID" else name
    ran = talk(*said, f"\\open {name}", "history")
    assert asked(ran)[:3] == ["snow", "\u2603 snow, d\u00e9j\u00e0 vu", "hello"]
    assert "2 turns loaded, from a chat with x" in ran.err
    assert len(stored_sessions()) == 3
    assert stored_sessions()[0].load().num_turns == 3


@pytest.mark.usefixtures("three")
def test_a_session_goes_on_from_the_shell(talk, run_mrs):
    ran = talk("more", flags=["--session", "a long walk"])
    assert asked(ran) == ["hello", HELLO, "more"]
    identity = find_session("poem").id
    ran = run_mrs("--session", identity, "-m", "demo", stdin="more\n")
    assert asked(ran)[0] == "poem"
    ran = run_mrs("--session", "nosuch", "-m", "demo", stdin="more\n")
    assert (ran.code, ran.models) == (2, [])
    assert ran.err == "mrs: error: there is no session nosuch: mrs sessions lists them\n"
    ran = run_mrs("--session", "poem", "--continue", "-m", "demo")
    assert "--continue and --session exclude each other" in ran.err


def test_its_model_is_loaded_if_none_is_named(talk, run_mrs):
    talk("hello", model="demo")
    ran = run_mrs("--session", "hello", stdin="more\n")
    assert (ran.code, ran.request.source.model_id) == (0, "demo")


@pytest.mark.usefixtures("three")
def test_a_command_of_the_shell_lists_them(run_mrs):
    assert titles(run_mrs("sessions").out) == ["A long walk", "snow", "poem"]
    assert titles(run_mrs("sessions", "violets", "poem").out) == ["poem"]
    listed = json.loads(run_mrs("sessions", "walk", "--json").out)["sessions"]
    (session,) = listed
    assert session == {
        "id": find_session("A long walk").id,
        "title": "A long walk",
        "model": "x",
        "turns": 1,
        "changed": "2001-09-09T01:46:40+00:00",
    }


def test_without_any(run_mrs):
    assert run_mrs("sessions").out == "there is no session yet\n"


def test_a_new_session_leaves_the_earlier_one(talk):
    ran = talk("snow", "\\new", "history")
    assert "You said: none" in ran.out
    assert [each.load().title for each in stored_sessions()] == ["history", "snow"]


def test_a_fork_goes_its_own_way(talk):
    talk("snow", "\\fork", "hello", "\\fork Another", "poem")
    found = {each.load().title: each.load().num_turns for each in stored_sessions()}
    assert found == {"snow": 1, "snow (fork)": 2, "Another": 3}
    assert "there is no message yet" in talk("\\fork").err


def test_two_chats_lose_nothing_of_each_other(talk):
    talk("snow")
    (stored,) = stored_sessions()
    one, two = (SessionFile.of(stored, stored.load()) for _ in range(2))
    turns = stored.load().turns
    chats = [
        SavedChat("x", None, Sampling(), [*turns, *_turn(text)]) for text in ("one", "two", "three")
    ]
    assert one.keep(chats[0]) == ""
    note = two.keep(chats[1])
    assert note.startswith("another chat continued this session, so this one goes on as ")
    assert two.keep(chats[2]) == ""
    found = {tuple(m["content"] for m in s.load().turns if m["role"] == "user")
             for s in stored_sessions()}  # fmt: skip
    assert found == {("snow", "one"), ("snow", "three")}


def _turn(text: str) -> list:
    return [{"role": "user", "content": text}, {"role": "assistant", "content": "yes"}]


@pytest.mark.usefixtures("three")
def test_a_session_is_deleted_when_the_person_agrees(talk):
    ran = talk("\\sessions", "\\delete 2", "n", "\\delete 2", "y", "\\sessions")
    assert "Delete the session snow? (y/n) " in ran.err
    assert titles(ran.err) == ["A long walk", "snow", "poem", "A long walk", "poem"]
    ran = talk("\\open poem", "\\delete poem", "y", "history")
    assert "deleted: poem; this is a new session" in ran.err
    assert "You said: none" in ran.out


def test_a_number_means_what_was_listed(talk):
    talk("snow")
    ran = talk("\\sessions", "poem", "\\new", "hello", "\\delete 1", "y")
    assert "deleted: snow" in ran.err


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ("\\open", "\\open needs a session or a file"),
        ("\\open 7", "there is no session 7: \\sessions lists them with numbers"),
        ("\\open 0", "there is no session 0"),
        ("\\open nosuch", "there is no session nosuch: mrs sessions lists them"),
        ("\\open /none/such.json", "/none/such.json cannot be read (No such file or directory)"),
        ("\\delete", "\\delete needs a session"),
        ("\\export", "\\export needs a file name: such as \\export chat.md"),
    ],
)
def test_what_is_not_there_is_said(talk, said, error):
    ran = talk(said, "hello")
    assert f"mrs: error: {error}" in ran.err
    assert ran.out == f"{HELLO}\n"


def test_a_title_that_two_have_is_not_guessed(talk):
    talk("snow", "\\new", "snow")
    ids = {each.id for each in stored_sessions()}
    ran = talk("\\open snow")
    assert "2 sessions have the title snow: choose by id: " in ran.err
    assert all(each in ran.err for each in ids)


def test_a_damaged_session_is_listed_and_can_be_deleted(talk):
    talk("snow")
    stored_sessions()[0].path.write_text("{")
    ran = talk("\\sessions", "\\open 1", "\\delete 1", "y", "\\sessions")
    assert "(damaged)" in ran.err
    assert "is damaged, or not a saved chat" in ran.err
    assert "there is no session yet" in ran.err


def test_an_export_can_be_opened_or_read(talk, tmp_path):
    ran = talk(
        *("\\system Be brief.", "snow", "think", f"\\export {tmp_path}/chat.json"),
        f"\\export {tmp_path}/chat.md",
    )
    assert f"2 turns saved to {tmp_path}/chat.md" in ran.err
    assert (tmp_path / "chat.md").read_text(encoding="utf-8") == (
        "# snow\n\n## System prompt\n\nBe brief.\n\n## You\n\nsnow\n\n## x\n\n"
        "\u2603 snow, d\u00e9j\u00e0 vu\n\n## You\n\nthink\n\n## x\n\n> It is a *riddle*.\n\n"
        "The answer is `<think>`.\n\n<!-- a chat with mrs -->\n"
    )
    ran = talk(f"\\open {tmp_path}/chat.json", "history")
    assert asked(ran)[:2] == ["Be brief.", "snow"]
    assert len(stored_sessions()) == 2  # a session of its own


def test_an_export_names_the_model_of_each_reply(talk, tmp_path):
    """Also those of a file that names only the model of all of its replies."""
    talk("snow", f"\\export {tmp_path}/chat.json")
    saved = json.loads((tmp_path / "chat.json").read_text())
    del saved["messages"][1]["model"]
    saved["model"] = "earlier"
    (tmp_path / "chat.json").write_text(json.dumps(saved))
    ran = talk(f"\\open {tmp_path}/chat.json", "history", f"\\export {tmp_path}/chat.md")
    assert "model" not in ran.models[0].asked[-1][0][1]
    text = (tmp_path / "chat.md").read_text(encoding="utf-8")
    assert [line for line in text.splitlines() if line.startswith("## ")] == [
        "## You", "## earlier", "## You", "## x",
    ]  # fmt: skip
    talk(f"\\open {tmp_path}/chat.json", "history", f"\\export {tmp_path}/new.json")
    saved = json.loads((tmp_path / "new.json").read_text())
    assert [each.get("model") for each in saved["messages"]] == [None, "earlier", None, "x"]


def test_an_export_replaces_no_other_file(talk, tmp_path):
    notes = tmp_path / "notes.md"
    notes.write_text("mine")
    assert "exists and is not a chat" in talk("snow", f"\\export {notes}").err
    assert notes.read_text() == "mine"
    notes.unlink()
    talk("snow", f"\\export {notes}", "hello", f"\\export {notes}")
    assert "Hello!" in notes.read_text()


CALLS = [
    {
        "role": "user",
        "content": "and?",
        "files": [TextFile("a.txt", "A text."), TextFile("b.pdf", "B", 3)],
    },
    {
        "role": "assistant",
        "model": "x",
        "content": "",
        "tool_calls": [{"id": "1", "name": "f", "arguments": "{}"}],
    },
    {"role": "tool", "content": "42", "tool_call_id": "1", "name": "f"},
    {"role": "assistant", "content": "It is 42.", "model": "y"},
]


def test_files_and_calls_come_back(tmp_path):
    chat = SavedChat("x", None, Sampling(), CALLS, given_title="T")
    save(chat, str(tmp_path / "chat.json"))
    assert load(str(tmp_path / "chat.json")) == chat


@pytest.mark.parametrize(
    ("index", "change", "why"),
    [
        (0, {"files": 3}, "the files of message 1 are damaged"),
        (0, {"files": [{"name": "a"}]}, "the files of message 1 are damaged"),
        (0, {"tool_calls": [{"id": "1", "name": "f", "arguments": "{}"}]}, "not those of a reply"),
        (1, {"tool_calls": ["f"]}, "the tool_calls of message 2 are damaged"),
        (1, {"tool_calls": []}, "message 3 is not from the user"),
        (2, {"role": "user"}, "message 3 is not from the tool"),
        (2, {"name": 3}, "message 3 does not name its tool and call"),
        (3, {"tool_calls": [{"id": "1", "name": "f", "arguments": ""}]}, "has no reply"),
    ],
)
def test_damaged_files_and_calls(tmp_path, index, change, why):
    path = tmp_path / "chat.json"
    save(SavedChat("x", None, Sampling(), CALLS), str(path))
    value = json.loads(path.read_text())
    value["messages"][index] |= change
    path.write_text(json.dumps(value))
    with pytest.raises(UsageError, match=why):
        load(str(path))


def test_undo_and_retry_take_calls_with_their_turn(talk, tmp_path):
    path = tmp_path / "chat.json"
    save(SavedChat("x", None, Sampling(), [*_turn("one"), *CALLS]), str(path))
    ran = talk(f"\\open {path}", "\\retry", "\\undo", "history")
    assert ran.models[0].asked[0][0][2]["content"].startswith("a.txt:\n```txt\nA text.\n```\n\n")
    assert asked(ran) == ["one", "yes", "history"]


def test_a_session_is_kept_while_it_goes_on(chat, process_env):
    """A chat that is killed has lost nothing but the last message."""
    child = chat()
    child.send("hello\r")
    child.expect_exact("first token 0.05 s")
    child.expect_exact("\u203a ")
    child.kill(9)
    child.wait()
    (kept,) = (Path(process_env["XDG_STATE_HOME"]) / "mrs" / "chats").glob("*")
    assert json.loads(kept.read_text())["messages"][0]["content"] == "hello"
