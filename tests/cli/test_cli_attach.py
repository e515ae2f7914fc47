"""Files go with a message: texts, PDF files and images."""

from __future__ import annotations

import json
from importlib import util
from pathlib import Path

import pytest
from mrs_runs import Ran

from mrs_cli.chat.attachments import given_paths, leading_files
from mrs_cli.chat.chat_message import TextFile, for_model
from mrs_cli.chat.session_store import stored_sessions
from support.pdf_files import pdf_of

NOTES = "The code word is plum.\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with some files."""
    (tmp_path / "my notes.txt").write_text(NOTES)
    (tmp_path / "code.py").write_text("print(3)\n# ```` fence\n")
    (tmp_path / "report.pdf").write_bytes(pdf_of("Page one", "Page two"))
    (tmp_path / "zeros.bin").write_bytes(b"PK\0\0\xff")
    (tmp_path / "wide.txt").write_bytes("wide".encode("utf-16"))
    (tmp_path / "cat.png").write_bytes(b"no image")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def last(ran: Ran) -> str:
    return ran.models[0].asked[-1][0][-1]["content"]


SHOWN = "my notes.txt:\n```txt\nThe code word is plum.\n```"


@pytest.mark.usefixtures("folder")
def test_a_file_goes_with_the_next_message_alone(talk):
    ran = talk("\\attach my notes.txt", "What is it?", "history", "\\attach")
    first, second = ran.models[0].asked
    assert first[0][-1]["content"] == f"{SHOWN}\n\nWhat is it?"
    assert second[0][0]["content"] == first[0][-1]["content"]
    assert second[0][-1]["content"] == "history"
    assert "\u25a4 my notes.txt 23 characters" in ran.err
    assert "nothing is attached; \\attach FILE adds" in ran.err


@pytest.mark.usefixtures("folder")
def test_several_files_and_one_taken_back(talk):
    ran = talk(
        "\\attach code.py 'my notes.txt'", "\\attach report.pdf", "\\detach 1", "\\attach", "So?"
    )
    assert "1 \u25a4 my notes.txt 23 characters\n2 \u25a4 report.pdf 2 pages, 18" in ran.err
    assert last(ran) == f"{SHOWN}\n\nreport.pdf:\n```\nPage one\n\nPage two\n```\n\nSo?"
    assert last(talk("\\attach code.py", "\\detach", "So?")) == "So?"


def test_a_fence_is_longer_than_any_in_the_text():
    file = TextFile("code.py", "print(3)\n# ```` fence\n")
    shown = for_model({"role": "user", "content": "", "files": [file]}, vision=False)
    assert shown == {
        "role": "user",
        "content": "code.py:\n`````py\nprint(3)\n# ```` fence\n`````",
    }


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("zeros.bin", "the file is not text (zeros.bin): attach text in UTF-8, a PDF file or"),
        ("wide.txt", "the file is UTF-16 (wide.txt): save it as UTF-8"),
        ("nosuch.txt", "the file cannot be attached (nosuch.txt: No such file or directory)"),
        (".", "only files can be attached (.)"),
        ("/dev/zero", "only files can be attached (/dev/zero)"),
        ("cat.png", "cat.png is an image: this needs a vision model"),
        ("'half", "a quote is not closed ('half)"),
        ("code.py nosuch.txt", "the file cannot be attached (nosuch.txt"),
    ],
)
def test_what_cannot_be_attached_is_said(talk, run_mrs, name, error):
    ran = talk(f"\\attach {name}", "hello")
    assert f"mrs: error: {error}" in ran.err
    assert last(ran) == "hello"
    if " " not in name and "'" not in name:
        ran = run_mrs("--file", name, "-P", "hello", "plain", "-m", "x")
        assert error in ran.err
        assert (ran.code != 0, ran.models) == (True, [])


def test_a_file_that_exceeds_the_context_is_refused_at_once(talk, folder):
    (folder / "long.txt").write_text("word " * 20)
    ran = talk("\\attach long.txt", "hello", model="small")
    assert "context holds 12" in ran.err
    assert last(ran) == "hello"


@pytest.mark.usefixtures("folder")
def test_files_of_a_single_question(run_mrs):
    words = ("--file", "my notes.txt", "--file", "report.pdf")
    ran = run_mrs(*words, "-P", "Which word?", "plain", "-m", "x")
    assert last(ran).startswith(f"{SHOWN}\n\nreport.pdf:\n```\nPage one")
    assert last(ran).endswith("\n\nWhich word?")
    ran = run_mrs("--file", "my notes.txt", "--each-line", "plain", "-m", "x", stdin="a\nb\n")
    assert [each[0][-1]["content"] for each in ran.models[0].asked] == [
        f"{SHOWN}\n\na",
        f"{SHOWN}\n\nb",
    ]
    ran = run_mrs("--file", "my notes.txt", "plain", "-m", "no-template", stdin="Which?")
    assert ran.models[0].asked[-1][0] == f"{SHOWN}\n\nWhich?"
    ran = run_mrs("--file", "my notes.txt", "--jsonl", "plain", "-m", "x", stdin="{}")
    assert (ran.code, ran.models) == (2, [])


@pytest.mark.usefixtures("folder")
def test_files_of_a_chat_wait_for_its_first_message(talk):
    ran = talk("Which word?", "history", flags=["--file", "my notes.txt"])
    assert ran.models[0].asked[0][0][-1]["content"] == f"{SHOWN}\n\nWhich word?"
    assert last(ran) == "history"


def test_a_path_at_the_beginning_of_a_message_is_a_file(talk, run_mrs, folder):
    said = f"'{folder}/my notes.txt' ./code.py Which word?"
    assert last(talk(said)).startswith(f"{SHOWN}\n\ncode.py:\n")
    assert last(talk(said)).endswith("\n\nWhich word?")
    # What is piped in comes from anyone: it names no files.
    ran = run_mrs("-i", "plain", "-m", "x", stdin=f"{said}\n")
    assert last(ran) == said
    ran = run_mrs("-P", said, "plain", "-m", "x")
    assert last(ran) == said


def test_leading_paths(folder):
    dragged = f"{folder}/my\\ notes.txt"
    assert leading_files(f"{dragged}\nWhat?") == ([f"{folder}/my notes.txt"], "What?")
    assert leading_files(f"file://{folder}/code.py") == ([f"{folder}/code.py"], "")
    for text in ("code.py is mine", "/nosuch/file is", f"{folder} is a folder", "/ and \\", ""):
        assert leading_files(text) == ([], text)


@pytest.mark.usefixtures("folder")
def test_given_paths():
    assert given_paths("my notes.txt") == ["my notes.txt"]
    assert given_paths("'my notes.txt' code.py") == ["my notes.txt", "code.py"]
    assert given_paths("my\\ notes.txt") == ["my notes.txt"]


@pytest.mark.usefixtures("folder")
def test_files_stay_with_their_message(talk):
    ran = talk("\\attach my notes.txt", "One?", "\\edit Two?", "\\retry")
    assert [each[0][-1]["content"] for each in ran.models[0].asked[1:]] == [f"{SHOWN}\n\nTwo?"] * 2
    kept = json.loads(stored_sessions()[0].path.read_text())
    assert kept["messages"][0] == {
        "role": "user",
        "content": "Two?",
        "files": [{"name": "my notes.txt", "text": NOTES}],
    }
    assert last(talk("history", flags=["--continue"])) == "history"


@pytest.mark.usefixtures("folder")
def test_without_pypdf(talk, monkeypatch):
    found = util.find_spec
    monkeypatch.setattr(
        "mrs.text.pdf_text.find_spec", lambda name: None if name == "pypdf" else found(name)
    )
    ran = talk("\\attach report.pdf")
    assert "PDF files need the package pypdf (report.pdf): pip install pypdf" in ran.err
