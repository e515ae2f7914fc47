"""`mrs --port` and `mrs serve`: flags, signals, and what a person reads."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from running_server import CHAT, until
from server_process import MRS, Process

from mrs.errors import ExitCode, NotReadable
from mrs_cli.app import main
from mrs_cli.environment import Environment
from support.waiting import PATIENCE_S

MANUAL = Path(__file__).parents[2] / "man/server.md"
AS_SYSTEMD = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.environ['LISTEN_PID'] = str(os.getpid()); "
    "os.execv(sys.argv[2], sys.argv[2:])"
)
ENDLESS = {"messages": "Hi", "max_tokens": 2000, "ignore_eos": True, "stream": True}


def run(*words: str, variables: dict[str, str] | None = None) -> tuple[int, str]:
    """The exit code and what a command that fails early says."""

    def load(request: Any, on_progress: Any = None, memory: Any = None) -> Any:
        raise NotReadable(f"would load {request.source.model_id} with isq {request.isq}")

    stderr = io.StringIO()
    environment = Environment(io.StringIO(), io.StringIO(), stderr, variables or {}, load)
    code = main(words, environment)
    return code, stderr.getvalue()


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "words",
    [
        ("--port", "0", "plain", "-m", "demo"),
        ("-p", "0", "plain", "-m", "demo"),
        ("serve", "-p", "0", "-m", "demo"),
        ("serve", "-p", "0", "plain", "-m", "demo"),
        ("-p", "0", "serve", "-m", "demo"),
    ],
)
def test_all_spellings_serve(words: tuple[str, ...]) -> None:
    assert run(*words) == (
        ExitCode.NOT_READABLE, "mrs: error: would load demo with isq None\n"
    )  # fmt: skip


def test_flags_of_the_model_go_before_or_after_serve() -> None:
    for words in (("--isq", "q4k", "serve"), ("serve", "--isq", "q4k")):
        assert "with isq q4k" in run(*words, "-p", "0", "-m", "demo")[1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-i", "--port", "1", "plain", "-m", "demo"), "-i and a server exclude each other"),
        (("--port", "1", "plain", "-m", "demo", "-P", "a"), "--prompt and a server exclude"),
        (("--port", "1", "plain", "-m", "demo", "-"), "- and a server exclude each other"),
        (("serve", "-m", "demo", "plain", "-m", "demo"), "put -m and its other flags after plain"),
        (("--grammar", "regex:a", "-p", "0", "plain", "-m", "demo"), "--grammar and a server"),
        (("-p", "0", "plain", "-m", "demo", "--json-schema", "FILE"), "--json-schema and a server"),
        (("--temperature", "0", "serve", "-p", "0", "-m", "demo"), "--temperature and a server"),
        (("serve", "-p", "0", "-m", "demo", "--log", "FILE"), "it writes down no texts"),
        (("-p", "0", "--admin-key-file", "/none", "plain", "-m", "demo"), "cannot be read"),
        (("--serve-ip", "::1", "plain", "-m", "demo"), "--serve-ip is for a server"),
        (("--port", "99999", "plain", "-m", "demo"), "--port"),
        (("serve",), "no model is given"),
        (("-p", "0", "--serve-ip", "256.1.1.1", "plain", "-m", "demo"), "cannot listen on"),
        (("-p", "0", "--api-key-file", "/none", "plain", "-m", "demo"), "cannot be read"),
    ],
)
def test_what_contradicts_itself_is_refused(words: tuple[str, ...], said: str) -> None:
    code, text = run(*words)
    assert code == ExitCode.USAGE
    assert said in text
    assert text.count("\n") == 1


def test_a_port_that_is_taken_is_said_with_the_reason_alone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        _, text = run("--port", str(port), "plain", "-m", "demo")
    assert f"port {port} ({os.strerror(errno.EADDRINUSE)}): another program uses the port" in text


@pytest.mark.full
def test_several_models_need_no_port(tmp_path: Path) -> None:
    file = tmp_path / "models.json"
    file.write_text('{"a": {"Plain": {"model_id": "demo"}, "in_situ_quant": "Q4K"}}')
    for words in (("multi-model",), ("serve", "-p", "0", "multi-model")):
        port = () if "-p" in words else ("-p", "0")
        code, text = run(*port, *words, "--config", str(file))
        assert (code, text) == (ExitCode.NOT_READABLE, "mrs: error: would load demo with isq q4k\n")
    assert "put -m and its other flags after multi-model" in run(
        "serve", "-m", "x", "multi-model", "-c", str(file)
    )[1]  # fmt: skip
    assert "--grammar and a server" in run(
        "--grammar", "regex:a", "multi-model", "-c", str(file)
    )[1]  # fmt: skip
    assert "--keep-alive soon is no duration" in run(
        "--keep-alive", "soon", "multi-model", "-c", str(file)
    )[1]  # fmt: skip


def test_an_empty_key_never_leaves_the_server_open(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(" \n\n")
    serve = ("-p", "0", "plain", "-m", "demo")
    assert "has no key" in run("--api-key-file", str(keys), *serve)[1]
    assert "MRS_API_KEY is empty" in run(*serve, variables={"MRS_API_KEY": " "})[1]


@pytest.mark.full
def test_a_server_for_everybody_warns_unless_it_has_a_key() -> None:
    words = ("-p", "0", "--serve-ip", "0.0.0.0", "plain", "-m", "demo")
    assert "everybody who reaches 0.0.0.0" in run(*words)[1]
    assert "everybody" not in run(*words, variables={"MRS_API_KEY": "k"})[1]
    assert "everybody" not in run("-p", "0", "plain", "-m", "demo")[1]


def test_a_port_in_use_is_named_before_the_model_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, text = run("--port", port, "plain", "-m", "demo")
    assert code == ExitCode.USAGE
    assert port in text
    assert "would load" not in text
    assert "--port" in text


@pytest.mark.full
def test_the_model_is_served_by_the_names_of_the_flags(start: Callable[..., Process]) -> None:
    names = ("--served-model-name", "house/one", "--served-model-name", "two")
    mrs = start("serve", *names, "--strict-model-name", "-p", "0", "-m", "demo")
    assert any("serving house/one, two at" in line for line in mrs.lines)
    for name, status in {"house/one": 200, "two": 200, "default": 200, "gpt-4o": 404}.items():
        body = {"model": name, "messages": "Hi", "max_tokens": 1}
        reply = httpx.post(mrs.url + CHAT, json=body, timeout=PATIENCE_S)
        assert reply.status_code == status
        assert status == 404 or reply.json()["model"] == "house/one"
    refused = httpx.post(
        f"{mrs.url}/v1/load_lora_adapter", json={"lora_name": "a", "lora_path": "/"}
    )
    assert refused.status_code == 403


def test_names_are_for_one_model(tmp_path: Path) -> None:
    models = tmp_path / "models.json"
    models.write_text('{"a": {"Plain": {"model_id": "demo"}}}')
    words = ("serve", "-p", "0", "--served-model-name", "b", "multi-model", "-c", str(models))
    assert "--served-model-name is for one model" in run(*words)[1]


@pytest.mark.full
@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_the_commands_of_the_manual_answer(start: Callable[..., Process]) -> None:
    blocks = re.findall(r"```bash\n(.*?)```", MANUAL.read_text(encoding="utf-8"), re.DOTALL)
    (block,) = (each for each in blocks if "curl" in each and "mrs --port" in each)
    serve, *clients = block.strip().splitlines()
    words = serve.removeprefix("mrs ").replace("1234", "0").split()
    mrs = start(*words)
    for client in clients:
        command = client.replace("http://localhost:1234", mrs.url)
        command = command.replace(" python ", f' "{sys.executable}" ')
        ran = subprocess.run(
            ["bash", "-c", command], capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        assert ran.returncode == 0, ran.stderr
        assert "The **KV cache**" in ran.stdout or "Hi" in ran.stdout, ran.stdout


@pytest.mark.full
@pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
def test_it_serves_as_soon_as_it_says_so_and_drains_after_sigterm(
    start: Callable[..., Process],
) -> None:
    mrs = start("--json", "--speculate", "off", "-p", "0", "plain", "-m", "demo", slow=True)
    assert httpx.get(f"{mrs.url}/ready").status_code == 200
    body = {**ENDLESS, "max_tokens": 100}
    with httpx.stream("POST", mrs.url + CHAT, json=body, timeout=PATIENCE_S) as reply:
        lines = reply.iter_lines()
        next(lines)
        mrs.process.send_signal(signal.SIGTERM)
        assert list(lines)[-2:] == ["data: [DONE]", ""]
    assert mrs.end() == 0
    assert any(line.endswith(f"chat page at {mrs.url}/\n") for line in mrs.lines)
    assert any("stopping: 1 request is running" in line for line in mrs.lines)
    (found,) = (json.loads(line) for line in mrs.lines if line.startswith('{"event":"request"'))
    assert found["completion_tokens"] == 100
    assert found["status"] == 200


@pytest.mark.full
@pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
def test_a_second_ctrl_c_stops_at_once(start: Callable[..., Process]) -> None:
    mrs = start("serve", "--speculate", "off", "-p", "0", "-m", "demo", slow=True)
    with httpx.stream(
        "POST", mrs.url + CHAT, json={**ENDLESS, "n": 2}, timeout=PATIENCE_S
    ) as reply:
        lines = reply.iter_lines()  # to drop it would close the connection
        next(lines)
        mrs.process.send_signal(signal.SIGINT)
        until(lambda: any("stopping" in line for line in mrs.lines))
        mrs.process.send_signal(signal.SIGINT)
        mrs.process.wait(PATIENCE_S)
    assert mrs.end() == 130
    assert not any("Traceback" in line for line in mrs.lines)
    assert not any("request " in line for line in mrs.lines if "stopping" not in line), (
        "a pipe gets no line for each request"
    )


def test_systemd_may_bind_the_socket(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        server = subprocess.Popen(
            [sys.executable, "-c", AS_SYSTEMD, str(listener.fileno()), *MRS, "serve", "-m", "demo"],
            env={**os.environ, "LISTEN_FDS": "1", "XDG_STATE_HOME": str(tmp_path)},
            pass_fds=(listener.fileno(),),
            stderr=subprocess.PIPE,
            text=True,
        )
    with server:
        lines = iter(server.stderr or [])
        assert any(f"serving demo at {address}/v1" in line for line in lines)
        assert httpx.get(f"{address}/ready").status_code == 200
        server.terminate()


def test_what_systemd_passes_is_checked() -> None:
    passed = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "2"}
    code, error = run("serve", "-m", "demo", variables=passed)
    assert code == ExitCode.USAGE
    assert "systemd passes no single TCP socket" in error
    code, error = run("serve", "-p", "0", "-m", "demo", variables={**passed, "LISTEN_PID": "1"})
    assert code == ExitCode.NOT_READABLE  # it is meant for another process
