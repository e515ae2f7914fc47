"""Runs of the same user that attach: what they get is what a run that loads the model gets."""

from __future__ import annotations

import io
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from running_server import DEMO, RunningServer, load, running, slow_down

from mrs.attach.attached_model import AttachedModel, ServerGone, attach
from mrs.attach.same_run import run_identity
from mrs.errors import UsageError
from mrs.events import Event, Finished, TextDelta, ToolCallDelta
from mrs.request import AdapterRequest, RunRequest, Sampling
from mrs.run.loaded_model import LoadedModel
from mrs.server.models.slot import ModelSlot
from mrs.server.settings import ServerSettings
from mrs.source.locate import DEMO_FOLDER
from mrs.tools.tool_request import read_tools
from mrs_cli.app import main
from mrs_cli.environment import Environment
from support.waiting import until

QUESTION = [{"role": "user", "content": "What is a KV cache?"}]
RANDOM = Sampling(temperature=1.0, seed=7, max_tokens=24)
TOOLS = [{"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}}]
LONG = Sampling(temperature=0, max_tokens=400, ignore_eos=True)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("a") / "1.sock"


@pytest.fixture(scope="module")
def server(path: Path) -> Iterator[RunningServer]:
    with running(local=path) as made:
        yield made


@pytest.fixture(scope="module")
def loaded() -> Iterator[LoadedModel]:
    model = load(DEMO, None)
    yield model
    model.close()


def attached(path: Path, request: RunRequest = DEMO) -> AttachedModel:
    identity = run_identity(request)
    assert identity is not None
    found = attach(path, identity)
    assert isinstance(found, AttachedModel), found
    return found


def why_not(path: Path, **fields: Any) -> str:
    identity = run_identity(replace(DEMO, **fields))
    assert identity is not None
    found = attach(path, identity)
    assert isinstance(found, str)
    return found


def told(events: Iterator[Event]) -> tuple[str, Finished]:
    *pieces, end = events
    assert isinstance(end, Finished)
    return "".join(each.text for each in pieces if isinstance(each, TextDelta)), end


def test_a_reply_is_that_of_a_model_loaded_here(server, path, loaded):
    model = attached(path)
    for sampling in (RANDOM, replace(RANDOM, seed=8), Sampling(temperature=0, stop=("cache",))):
        text, end = told(model.stream_chat(QUESTION, sampling))
        expected, own = told(loaded.stream_chat(QUESTION, sampling))
        assert (text, end.reason, end.stop_string) == (expected, own.reason, own.stop_string)
        assert end.usage.completion_tokens == own.usage.completion_tokens
    assert (
        told(model.stream_completion("A cache", RANDOM))[0]
        == (told(loaded.stream_completion("A cache", RANDOM))[0])
    )
    assert (model.summary, model.context_tokens) == (loaded.summary, loaded.context_tokens)
    assert model.suggested_sampling == loaded.suggested_sampling


def test_replies_are_logged_and_counted(server, path):
    told(attached(path).stream_chat(QUESTION, RANDOM))
    until(lambda: any('"path":"run"' in line for line in server.said))
    line = json.loads(next(each for each in server.said if '"path":"run"' in each))
    assert line["status"] == 200
    assert line["completion_tokens"] > 0


def test_only_the_user_may_use_the_socket(server, path):
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"isq": "q4k"}, "--isq differs"),
        ({"dtype": "f32"}, "--dtype differs"),
        ({"cpu": False}, "--cpu differs"),
        ({"thinking": True}, "--thinking differs"),
        ({"max_seqs": 5}, "--max-seqs differs"),
        ({"prefix_cache_dir": "."}, "--prefix-cache-dir differs"),
        ({"adapters": (AdapterRequest("a"),)}, "the run has --adapters"),
        ({"write_uqff": "a"}, "the run has --write-uqff"),
        ({"chat_template": __file__}, "its model is another one, or has changed"),
        (
            {"source": replace(DEMO.source, model_id="demo-vision")},
            "its model is another one, or has changed",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_another_run_is_refused(server, path, fields, reason):
    assert why_not(path, **fields) == reason


def test_what_only_makes_replies_faster_need_not_be_named(server, path):
    unnamed = replace(DEMO, max_seqs=RunRequest.max_seqs, speculate=RunRequest.speculate)
    attached(path, unnamed)


def test_variables_that_choose_kernels_count(server, path, monkeypatch):
    monkeypatch.setenv("MRS_LOGICAL_DEVICES", "cpu,cpu")
    assert why_not(path) == "MRS_LOGICAL_DEVICES differs"


def test_a_server_planned_for_shorter_sequences_refuses(tmp_path):
    with running(local=tmp_path / "1.sock", max_seq_len=64):
        assert why_not(tmp_path / "1.sock") == "it is planned for 64 tokens"
        attached(tmp_path / "1.sock", replace(DEMO, max_seq_len=32))


def test_a_model_whose_files_have_changed_is_refused(tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(DEMO_FOLDER / "model", folder)
    request = replace(DEMO, source=replace(DEMO.source, model_id=str(folder)))
    with running(slots=[ModelSlot(request)], local=tmp_path / "1.sock"):
        attached(tmp_path / "1.sock", request)
        (folder / "generation_config.json").write_text("{}")
        assert why_not(tmp_path / "1.sock", source=request.source).startswith("its model is")


def test_a_prompt_larger_than_a_body_is_refused(tmp_path):
    with running(ServerSettings(max_body_bytes=1000), local=tmp_path / "1.sock"):
        model = attached(tmp_path / "1.sock")
        with pytest.raises(UsageError, match="more than the server takes: --attach never"):
            model.stream_completion("a" * 2**21, RANDOM)


def test_a_server_that_hangs_is_not_waited_for_long(tmp_path, monkeypatch):
    monkeypatch.setattr("mrs.attach.attached_model._OPEN_SECONDS", 0.1)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "1.sock"))
        listener.listen()
        assert "cannot be reached" in why_not(tmp_path / "1.sock")


def test_errors_are_those_of_a_run(server, path, loaded):
    long = [{"role": "user", "content": "word " * 20_000}]
    with pytest.raises(Exception) as own:  # noqa: PT011 - the other one is to be the same
        told(loaded.stream_chat(long, RANDOM))
    with pytest.raises(Exception) as theirs:  # noqa: PT011
        told(attached(path).stream_chat(long, RANDOM))
    assert str(own.value) == str(theirs.value)
    assert own.value.exit_code == theirs.value.exit_code


def test_a_run_that_leaves_frees_its_sequence(server, path, monkeypatch):
    slow_down(0.02, monkeypatch.setattr)
    events = attached(path).stream_chat(QUESTION, LONG)
    assert len(list(islice(events, 2))) == 2
    assert server.stats.running == 1
    events.close()
    server.wait_until_idle()


def test_an_interrupt_ends_the_reply_with_its_usage(server, path, monkeypatch):
    slow_down(0.02, monkeypatch.setattr)
    events = attached(path).stream_chat(QUESTION, LONG)
    next(events)
    monkeypatch.setattr("mrs.attach.attached_model.receive", _interrupted_once())
    _, end = told(events)
    assert end.reason == "cancelled"
    assert 0 < end.usage.completion_tokens < 400
    server.wait_until_idle()


def _interrupted_once() -> Callable[..., Any]:
    from mrs.attach.protocol import receive

    pending = [KeyboardInterrupt]

    def once(connection: Any) -> Any:
        if pending:
            raise pending.pop()
        return receive(connection)

    return once


def test_a_server_that_stops_lets_a_reply_end_and_then_refuses(tmp_path, monkeypatch):
    slow_down(0.01, monkeypatch.setattr)
    with running(local=tmp_path / "1.sock") as server:
        model = attached(tmp_path / "1.sock")
        events = model.stream_chat(QUESTION, replace(LONG, max_tokens=30))
        next(events)
        server.server.stop()
        assert told(events)[1].reason == "length"
        until(lambda: server.server.service.num_requests == 0)
    with pytest.raises(ServerGone, match="the server ended"):
        model.stream_chat(QUESTION, RANDOM)
    assert not (tmp_path / "1.sock").exists()


def test_a_reply_that_takes_too_long_to_drain_is_an_error(tmp_path, monkeypatch):
    slow_down(0.02, monkeypatch.setattr)
    with running(ServerSettings(drain_timeout_s=0.1), local=tmp_path / "1.sock") as server:
        events = attached(tmp_path / "1.sock").stream_chat(QUESTION, LONG)
        next(events)
        server.server.stop()
        with pytest.raises(Exception, match="the server was stopped"):
            told(events)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str, str]]:
    """Runs `mrs` where loading a model fails; servers of its user are below `tmp_path`."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    def run_mrs(*words: str, stdin: str = "") -> tuple[int, str, str]:
        def no_load(*_: Any) -> Any:
            raise AssertionError("it loads a model")

        out, err = io.StringIO(), io.StringIO()
        code = main(words, Environment(io.StringIO(stdin), out, err, {}, no_load))
        return code, out.getvalue(), err.getvalue()

    return run_mrs


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "mrs" / "servers"
    folder.mkdir(parents=True)
    with running(local=folder / "1.sock", speculate="ngram", cpu=False):
        yield folder / "1.sock"


def test_prompts_of_the_command_line_are_answered(local, run):
    code, out, err = run("-m", "demo", "-P", "Who are you?", "-v", "--seed", "1")
    assert code == 0
    assert out.strip()
    assert "attached to http://127.0.0.1:" in err
    code, out, err = run("-m", "demo", "--each-line", "--json", stdin="Hi\nWho are you?\nBye\n")
    replies = [json.loads(line) for line in out.splitlines()]
    assert [bool(each["text"]) for each in replies] == [True] * 3
    assert all(each["server"].startswith("http://127.0.0.1:") for each in replies)
    assert "attached" not in err


def test_other_runs_load_their_model(local, run):
    for words in (["--attach", "never"], ["-i", "--attach", "never"], ["--isq", "q4k"]):
        code, _, err = run("-m", "demo", *words, stdin="Hi\n")
        assert (code, "it loads a model" in err) == (1, True)


def test_a_server_may_be_required(local, run):
    code, _, err = run("-m", "demo", "-P", "Hi", "--isq", "q4k", "--attach", "require")
    assert code == 3
    assert "no server of yours answers for this run (pid 1: --isq differs)" in err
    code, _, err = run("-m", "demo", "-i", "--isq", "q4k", "--attach", "require")
    assert code == 3
    assert "no server of yours answers for this run" in err


def test_a_chat_is_answered_until_another_model_is_chosen(local, run):
    said = "Hi\n\\tokens\n\\plan\n\\model demo\nHi\n"
    code, out, err = run("-m", "demo", "-i", "--attach", "require", stdin=said)
    assert "your server at http://127.0.0.1:" in err
    assert out.strip()
    assert "context: " in err
    assert "the plan is that of the server" in err
    assert (code, "it loads a model" in err) == (1, True)


def test_a_chat_outlives_its_server(tmp_path):
    with running(local=tmp_path / "1.sock"):
        model = attached(tmp_path / "1.sock")
        assert told(model.stream_chat(QUESTION, RANDOM))[0]
    with pytest.raises(ServerGone, match=r"\\retry go on without it"):
        model.prompt_tokens(QUESTION)


def test_a_call_after_the_model_has_changed_is_refused(server, path, monkeypatch):
    """A chat stays attached for long: the model may have gone since it was opened."""
    model = attached(path)
    monkeypatch.setattr("mrs.server.local_runs.difference", lambda *_: "it has changed")
    with pytest.raises(ServerGone, match="it has changed"):
        told(model.stream_chat(QUESTION, RANDOM))


def test_tools_and_tokens_are_those_of_a_model_loaded_here(server, path, loaded):
    model, tools = attached(path), read_tools(TOOLS, "required", parallel_tool_calls=False)
    assert model.prompt_tokens(QUESTION, tools=tools) == loaded.prompt_tokens(QUESTION, tools=tools)
    longer = replace(RANDOM, max_tokens=200)
    theirs = list(model.stream_chat(QUESTION, longer, tools=tools))
    own = list(loaded.stream_chat(QUESTION, longer, tools=tools))
    assert _calls(theirs) == _calls(own) != ("", "")


def _calls(events: list[Event]) -> tuple[str, str]:
    parts = [each for each in events if isinstance(each, ToolCallDelta)]
    return "".join(each.name or "" for each in parts), "".join(each.arguments for each in parts)


def test_an_attached_run_imports_nothing_that_computes(local, tmp_path):
    program = (
        "import sys; from mrs_cli.app import main; code = main(); "
        "print(*sys.modules, file=sys.stderr); sys.exit(code)"
    )
    words = ["-m", "demo", "-P", "Hi", "--attach", "require", "--json"]
    ran = subprocess.run(
        [sys.executable, "-c", program, *words],
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
        text=True,
    )
    assert json.loads(ran.stdout)["server"]
    imported = {name.partition(".")[0] for name in ran.stderr.splitlines()[-1].split()}
    heavy = {"torch", "numpy", "tokenizers", "jinja2", "huggingface_hub", "asyncio", "rich"}
    assert imported & heavy == set()
