"""`mrs batch`: every line of a file is answered once, as over HTTP, however often it is stopped."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from server_process import MRS

from mrs.errors import ExitCode
from mrs_cli.app import main
from mrs_cli.environment import Environment
from support.waiting import PATIENCE_S, until

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def line(custom_id: str, url: str = TEXT, **body: Any) -> str:
    given = {"prompt": f"The number {custom_id}", "max_tokens": 4} if url == TEXT else {}
    fields = {"custom_id": custom_id, "method": "POST", "url": url, "body": given | body}
    return json.dumps(fields) + "\n"


def run(*words: object) -> tuple[int, str, str]:
    """The exit code, what is printed, and what is said."""
    environment = Environment.of_process()
    stdout, stderr = io.StringIO(), io.StringIO()
    environment = Environment(io.StringIO(), stdout, stderr, {}, environment.load)
    code = main(["batch", "--cpu", "-m", "demo", *map(str, words)], environment)
    return code, stdout.getvalue(), stderr.getvalue()


def answers(path: Path) -> dict[str, Any]:
    """The answers by the ids of their lines, each of which has one."""
    found = [json.loads(each) for each in path.read_text().splitlines()]
    assert max(Counter(each["custom_id"] for each in found).values(), default=1) == 1
    return {each["custom_id"]: each["response"] for each in found}


@pytest.fixture
def requests(tmp_path: Path) -> Path:
    path = tmp_path / "requests.jsonl"
    path.write_text(
        line("text")
        + "\n"  # an empty line is none
        + line("chat", CHAT, messages=[{"role": "user", "content": "Hi"}], max_tokens=3, odd=1)
        + line("vectors", "/v1/embeddings", input=["a", "b"])
        + line("stream", stream=True)
        + line("wrong", temperature=-1)
    )
    return path


def test_each_line_gets_what_the_same_request_over_http_gets(requests: Path) -> None:
    code, printed, said = run(requests, "--json")
    assert code == 0, said
    found = answers(requests.with_name("requests.output.jsonl"))
    assert {name: each["status_code"] for name, each in found.items()} == dict.fromkeys(
        ("text", "chat", "vectors"), 200
    )
    assert found["text"]["body"]["object"] == "text_completion"
    assert found["chat"]["body"]["usage"]["completion_tokens"] <= 3
    assert len(found["vectors"]["body"]["data"]) == 2
    failed = answers(requests.with_name("requests.errors.jsonl"))
    assert {name: each["body"]["error"]["param"] for name, each in failed.items()} == {
        "stream": "stream", "wrong": "temperature"
    }  # fmt: skip
    assert "fields without effect: odd" in said
    assert "5 lines: about" in said
    report = json.loads(printed)
    assert (report["completed"], report["failed"], report["before"]) == (3, 2, 0)


def test_what_is_answered_is_left_alone_and_a_broken_line_is_made_again(requests: Path) -> None:
    output = requests.with_name("requests.output.jsonl")
    output.write_text('{"custom_id":"text","kept":true}\n{"custom_id":"cha' + "x" * 200_000)
    code, _, said = run(requests)
    assert code == 0
    assert "1 of 5 lines have their answers" in said
    first, *others = output.read_text().splitlines()
    assert json.loads(first)["kept"]
    assert sorted(json.loads(each)["custom_id"] for each in others) == ["chat", "vectors"]
    assert "nothing is left to do" in run(requests)[2]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (line("a") + "no JSON\n", "line 2: it is not valid JSON"),
        (line("a") + line("b").replace("POST", "GET"), "line 2: method:"),
        (line("a", "/v1/rerank"), "line 1: url:"),
        (line("a") + line("a"), "line 2: the custom_id 'a' is that of an earlier line"),
        ("[]\n", "line 1: expected `object`"),
        ("\n", "has no lines"),
    ],
)
def test_a_file_with_problems_is_refused_before_the_model_is_loaded(
    tmp_path: Path, text: str, said: str
) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(text)
    code, _, error = run(file)
    assert code == ExitCode.USAGE
    assert said in error
    assert error.count("\n") == 1


def test_what_contradicts_itself_is_refused(requests: Path, tmp_path: Path) -> None:
    assert "no file of requests" in run()[2]
    assert "there is no file" in run(tmp_path / "none")[2]
    assert "cannot be the requests and the answers" in run(requests, "--output", requests)[2]
    other = tmp_path / "other.jsonl"
    other.write_text('{"custom_id":"elsewhere"}\n')
    assert "1 answer of lines that" in run(requests, "--output", other)[2]
    other.write_text("no answer\n")
    assert "line 1 is no answer of a batch" in run(requests, "--output", other)[2]
    assert "--log and a batch exclude each other" in run(requests, "--log", "FILE")[2]


def test_two_processes_never_write_one_file(requests: Path) -> None:
    fcntl = pytest.importorskip("fcntl")
    output = requests.with_name("requests.output.jsonl")
    with output.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert "another process writes" in run(requests)[2]


@pytest.mark.full
def test_each_of_200_lines_is_answered_once_by_processes_of_which_five_are_killed(
    tmp_path: Path,
) -> None:
    file, output = tmp_path / "many.jsonl", tmp_path / "many.output.jsonl"
    file.write_text("".join(line(str(n), ignore_eos=True, max_tokens=40) for n in range(200)))
    command = [*MRS, "batch", "--cpu", "-m", "demo", "--speculate", "off", str(file)]
    kills = 0
    for count in (10, 40, 80, 120, 160):
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        until(lambda count=count: output.exists() and len(output.read_bytes().splitlines()) > count)
        kills += process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.wait(PATIENCE_S)
        time.sleep(0.1)
    assert kills >= 4
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL, timeout=PATIENCE_S)
    found = answers(output)
    assert found.keys() == {str(n) for n in range(200)}
    assert all(each["body"]["usage"]["completion_tokens"] == 40 for each in found.values())
