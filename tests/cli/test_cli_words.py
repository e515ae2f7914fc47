"""Words that are no flags: the model, the question, and commands as other programs have them."""

from __future__ import annotations

import io
import json
import os
import signal
from pathlib import Path

import fake_model
import pytest
from mrs_runs import Terminal

from mrs.source.locate import DEMO_FOLDER
from mrs_cli.app import main
from mrs_cli.commands import running_servers
from mrs_cli.environment import Environment

GGUF = DEMO_FOLDER / "model" / "demo.gguf"


@pytest.fixture(autouse=True)
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with the model `bare`, which has no owner, and with `org/known`."""
    for name in ("models--bare", "models--org--known"):
        snapshot = tmp_path / name / "snapshots" / ("0" * 40)
        snapshot.mkdir(parents=True)
        (snapshot / "config.json").write_text("{}")
        (snapshot / "model.safetensors").write_bytes(b"")
        (tmp_path / name / "refs").mkdir()
        (tmp_path / name / "refs" / "main").write_text("0" * 40)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path


def asked(ran) -> list[str]:
    return [messages[-1]["content"] for messages, _ in ran.models[0].asked]


@pytest.mark.parametrize(
    "words",
    [
        ["-m", "demo", "hello"],
        ["demo", "hello"],
        ["run", "demo", "hello"],
        ["run", "-m", "demo", "hello"],
        ["--cpu", "demo", "--seed", "3", "hello"],
        ["demo", "--max-tokens", "5", "-P", "hello"],
        ["plain", "-m", "demo", "hello"],
        ["run", "demo", "-i", "hello"],
        ["chat", "demo", "hello"],
    ],
    ids=" ".join,
)
def test_a_model_and_a_question_need_no_flags(run_mrs, words):
    ran = run_mrs(*words)
    assert (ran.code, ran.out) == (0, "Hello! I am a **fake** model.\n")
    assert ran.request.source.model_id == "demo"


@pytest.mark.parametrize("name", ["demo", str(GGUF), str(DEMO_FOLDER / "model")])
def test_a_word_that_is_a_model_is_one_before_the_question(run_mrs, name):
    assert run_mrs(name, "hello").request.source.model_id == name


def test_flags_of_a_file_leave_the_word_for_the_question(run_mrs):
    assert asked(run_mrs("-f", str(GGUF), "hello")) == ["hello"]


def test_what_is_piped_in_follows_the_question(run_mrs):
    assert asked(run_mrs("demo", "Explain", stdin="code\n")) == ["Explain\n\ncode"]


@pytest.mark.parametrize("line", ["demo", "-m demo", "plain -m demo", "chat demo"])
def test_at_a_terminal_a_model_alone_is_a_chat(line, monkeypatch):
    lines = iter(["hello\n", ""])
    monkeypatch.setattr(Terminal, "readline", lambda self: next(lines))
    out = Terminal()
    environment = Environment(Terminal(), out, io.StringIO(), {"TERM": "dumb"}, fake_model.load)
    assert main(line.split(), environment) == 0
    assert out.getvalue() == "Hello! I am a **fake** model.\n"


@pytest.mark.few(1)
@pytest.mark.parametrize("command", ["plan", "show"])
def test_other_commands_take_the_model_as_a_word(run_mrs, command):
    flags = ["--dry-run"] if command == "plan" else []
    by_word, by_flag = run_mrs(command, "demo", *flags), run_mrs(command, "-m", "demo", *flags)
    assert by_word.code == by_flag.code == 0
    assert by_word.out.startswith("model: demo\n")
    assert by_word.out.splitlines()[:2] == by_flag.out.splitlines()[:2]


@pytest.mark.parametrize(
    "command", ["run", "chat", "plan", "show", "tune", "serve", "bench", "pull"]
)
def test_a_command_without_a_model_asks_for_one(run_mrs, command):
    ran = run_mrs(command)
    assert ran.code == 2
    assert "no model is given: add -m ID" in ran.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("plian", "no such command 'plian': did you mean 'plan', 'plain'?"),
        ("demmo hi", "no such command 'demmo': did you mean the model demo?"),
        ("Known", "no such command 'Known': did you mean the model org/known?"),
        ("qqqqqq", "no such command 'qqqqqq': mrs --help lists the commands"),
        ("-p hello demo", '-p is --port and needs a number: to ask a question use -P "hello"'),
        ("-p 65536 demo", "--port needs a number from 0 to 65535"),
        ("--isq q4km show demo", "--isq q4km is not a known format: did you mean q4k? The formats"),
    ],
)
def test_what_may_have_been_meant_is_said(run_mrs, words, said):
    ran = run_mrs(*words.split())
    assert ran.code == 2
    assert said in ran.err
    assert ran.err.count("\n") == 1


def test_a_question_without_a_model_is_told_where_the_model_goes(run_mrs):
    ran = run_mrs("What is that?")
    assert ran.code == 2
    assert 'no model is given: put it before the question: mrs demo "What is that?"' in ran.err
    ran = run_mrs("embed", "A text")
    assert ran.code == 2
    assert 'no model is given: put it before the text: mrs embed demo "A text"' in ran.err


def test_a_download_without_an_owner_is_a_model(run_mrs, hub):
    ran = run_mrs("bare", "hello")
    assert "no such command" not in ran.err


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("name", "isq", "is_mix"),
    [
        ("Q4_K_M", "q4k", True),
        ("q5_k_s", "q5k", True),
        ("Q6_K", "q6k", False),
        ("q4k", "q4k", False),
    ],
)
def test_names_of_gguf_quantizations_are_understood(run_mrs, name, isq, is_mix):
    ran = run_mrs("--isq", name, "show", "demo")
    assert ran.code == 0
    note = f"mrs: --isq {name} is {isq}: llama.cpp's mix"
    assert (note in ran.err) == is_mix
    assert ran.out.splitlines()[1] == run_mrs("show", "demo", "--isq", isq).out.splitlines()[1]


def test_help_is_a_command(run_mrs, capsys):
    def page(*words: str) -> str:
        assert run_mrs(*words).code == 0
        return capsys.readouterr().out

    assert page("help") == page("--help") == page()
    assert page("help", "serve") == page("serve", "--help")
    assert page("help", "all") == page("--help", "all")
    assert page("help", "cache", "list", "all") == page("cache", "list", "-h", "all")


def test_downloads_are_listed_and_deleted_by_short_commands(run_mrs, hub):
    assert run_mrs("list").out == run_mrs("ls").out == run_mrs("cache", "list").out
    ran = run_mrs("rm", "org/known", "--yes")
    assert (ran.code, ran.out.partition(": ")[0]) == (0, "deleted org/known")
    assert not (hub / "models--org--known").exists()
    assert run_mrs("rm").code == run_mrs("cache", "delete").code == 2
    assert "mrs cannot ask for confirmation (bare): add --yes" in run_mrs("rm", "bare").err


def test_a_model_that_is_here_is_not_downloaded_again(run_mrs):
    ran = run_mrs("pull", "demo")
    assert (ran.code, ran.out.partition(":")[0]) == (0, "demo is on this machine")
    told = json.loads(run_mrs("pull", "demo", "--json").out)
    assert Path(told["path"]) == DEMO_FOLDER / "model"
    assert told["size_bytes"] == (DEMO_FOLDER / "model" / "model.safetensors").stat().st_size


def test_servers_are_listed_while_they_run(run_mrs):
    assert "no server of yours runs" in run_mrs("ps").out
    with running_servers.announced("http://127.0.0.1:1", ["a", "b"]):
        row = run_mrs("ps").out.splitlines()[1].split()
        assert row == [str(os.getpid()), "http://127.0.0.1:1", "a,", "b"]
        (told,) = json.loads(run_mrs("ps", "--json").out)["servers"]
        assert (told["pid"], told["models"]) == (os.getpid(), ["a", "b"])
    assert json.loads(run_mrs("ps", "--json").out) == {"servers": []}


def test_files_of_servers_that_are_gone_are_deleted(run_mrs):
    with running_servers.announced("http://127.0.0.1:1", ["a"]):
        (path,) = running_servers._folder().glob("*.json")
        server = json.loads(path.read_text())
    for number, change in enumerate(({"started": 1.0}, {"pid": 2**30}, {"pid": "x"}, {"more": 1})):
        (path.parent / f"{number}.json").write_text(json.dumps({**server, **change}))
    (path.parent / "9.json").write_text("[")
    assert running_servers.running_servers() == []
    assert list(path.parent.iterdir()) == []


def test_a_server_is_stopped_by_its_model_or_its_number(run_mrs, monkeypatch):
    sent = []
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append((pid, number)))
    with running_servers.announced("http://127.0.0.1:1", ["a"]):
        for words in ([], ["a"], [str(os.getpid())], ["all"]):
            ran = run_mrs("stop", *words)
            assert ran.out == f"stopping a at http://127.0.0.1:1 (pid {os.getpid()})\n"
        assert sent == [(os.getpid(), signal.SIGTERM)] * 4
        assert run_mrs("stop", "other").code == 3
    assert run_mrs("stop").code == 3
    assert len(sent) == 4
