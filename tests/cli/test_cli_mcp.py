"""Tools of MCP servers: each call is shown, asked for, and bounded."""

from __future__ import annotations

import json
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import util
from pathlib import Path

import pytest
from mrs_runs import PROMPT, Ran

from mrs_cli.chat.session import MAX_ROUNDS
from mrs_cli.chat.session_store import stored_sessions
from mrs_cli.chat.tools import mcp_connections
from mrs_cli.chat.tools.mcp_specs import McpServer, read_servers

pytest.importorskip("mcp")

SCRIPT = str(Path(__file__).with_name("mcp_server.py"))
COMMAND = shlex.join([sys.executable, SCRIPT])
PARIS = 'call weather {"city": "Paris"}'


def ask(run_mrs, said: str, *flags: str, given: str = COMMAND) -> Ran:
    """A question where nobody can be asked."""
    return run_mrs("--mcp", given, *flags, "-P", said, "plain", "-m", "x")


def last(ran: Ran) -> list[dict]:
    return ran.models[0].asked[-1][0]


def test_an_allowed_tool_is_called_and_its_result_goes_back(run_mrs):
    ran = ask(run_mrs, PARIS, "--allow-tools", "weather,fail")
    assert (ran.code, ran.out) == (0, "You said: Paris: 21 degrees, sunny\n")
    assert 'calling weather {"city": "Paris"}' in ran.err
    assert last(ran)[1:] == [
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "call-0", "name": "weather", "arguments": '{"city": "Paris"}'}],
        },
        {
            "role": "tool",
            "content": "Paris: 21 degrees, sunny",
            "tool_call_id": "call-0",
            "name": "weather",
        },
    ]
    tools = ["weather", "variables", "long", "fail", "hang", "die"]
    assert ran.models[0].offered == [tools, tools]


def test_nothing_is_called_where_nobody_can_be_asked(run_mrs):
    ran = ask(run_mrs, PARIS)
    assert (ran.code, ran.out) == (0, "You said: Error: the user did not allow this call.\n")
    assert 'weather {"city": "Paris"} is not called: --allow-tools weather allows it' in ran.err


@pytest.mark.full
def test_a_reply_of_json_is_one_object(run_mrs):
    ran = ask(run_mrs, PARIS, "--json", "--allow-tools", "all")
    assert json.loads(ran.out)["text"] == "You said: Paris: 21 degrees, sunny"


def test_a_person_is_asked(talk):
    flags = ["--mcp", COMMAND]
    two = f"{PARIS} call fail {{}}"
    ran = talk("\\tools", two, "n", "y", PARIS, "always", PARIS, "\\tools", "history", flags=flags)
    assert 'Call weather {"city": "Paris"}? (y/N/always) Call fail {}? (y/N/always) ' in ran.err
    assert ran.err.count("calling weather") == 1
    assert "weather    asks     The weather in a city now." in ran.err
    assert "weather    allowed  The weather in a city now." in ran.err
    results = [each["content"] for each in last(ran) if each["role"] == "tool"]
    assert results == [
        "Error: the user did not allow this call.",
        "Error: Error executing tool fail",
        *["Paris: 21 degrees, sunny"] * 2,
    ]
    (stored,) = stored_sessions()
    assert stored.load().num_turns == 4


def test_the_server_gets_none_of_our_secrets(run_mrs, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "secret")
    ran = ask(run_mrs, "call variables {}", "--allow-tools", "all")
    assert "PATH" in ran.out
    assert "HF_TOKEN" not in ran.out


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("call", "note"),
    [
        ("nosuch {}", "there is no tool nosuch"),
        ("weather {]}", "weather is not called: its arguments are no JSON object"),
        ("die {}", "die of the MCP server mcp_server failed: Connection closed"),
        ("hang {}", "hang of the MCP server mcp_server failed"),
    ],
)
def test_a_call_that_fails_is_one_line_and_the_reply_goes_on(run_mrs, monkeypatch, call, note):
    monkeypatch.setattr(mcp_connections, "CALL_SECONDS", 1.0)
    began = time.monotonic()
    ran = ask(run_mrs, f"call {call}", "--allow-tools", "all")
    assert ran.code == 0
    assert sum(note in line for line in ran.err.splitlines()) == 1
    assert f"Error: {note}" in ran.out
    assert time.monotonic() - began < 30


@pytest.mark.full
def test_a_call_that_is_cut_off_is_said(run_mrs):
    ran = ask(run_mrs, f"{PARIS} cut off", "--allow-tools", "all")
    assert (ran.code, ran.out) == (0, "\n")
    assert "the reply ended before its call of weather was complete" in ran.err
    assert len(ran.models[0].asked) == 1


@pytest.mark.full
def test_a_long_result_is_cut(run_mrs):
    ran = ask(run_mrs, "call long {}", "--allow-tools", "all")
    assert "long: the result is cut, 95,904 characters are left out" in ran.err
    assert len(last(ran)[-1]["content"]) < 4200


@pytest.mark.full
def test_rounds_are_bounded(run_mrs):
    ran = ask(run_mrs, f"{PARIS} again and again", "--allow-tools", "all")
    offered = ran.models[0].offered
    assert len(offered) == MAX_ROUNDS + 1
    assert [bool(each) for each in offered] == [True] * MAX_ROUNDS + [False]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("flags", "said", "code"),
    [
        (["--mcp", "/none/such"], "the MCP server such cannot be used (No such file", 3),
        (["--mcp", sys.executable + " -c pass"], "cannot be used (Connection closed)", 3),
        (["--mcp", "http://127.0.0.1:9/mcp"], "the MCP server 127.0.0.1:9 cannot be used", 3),
        (["--mcp", ""], "--mcp is empty", 2),
        (["--mcp", "'x"], "a quote is not closed", 2),
        (["--mcp", COMMAND, "--allow-tools", "wether"], "wether: there is no such tool", 2),
        (["--allow-tools", "weather"], "--allow-tools needs tools", 2),
        (["--mcp", COMMAND, "--grammar", "regex:a"], "--mcp and a grammar exclude each other", 2),
        (["--mcp-config", "/none/such"], "--mcp-config /none/such cannot be read", 2),
    ],
)
def test_what_cannot_be_is_said(run_mrs, flags, said, code):
    ran = run_mrs(*flags, "-P", "hello", "plain", "-m", "x")
    assert ran.code == code
    assert said in ran.err
    assert ran.err.splitlines()[-1].startswith("mrs: error: ")


@pytest.mark.full
def test_a_server_at_an_address(run_mrs):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with subprocess.Popen([sys.executable, SCRIPT, str(port)], stderr=subprocess.DEVNULL) as server:
        try:
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline:
                try:
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                except OSError:
                    time.sleep(0.1)
            url = f"http://127.0.0.1:{port}/mcp"
            ran = ask(run_mrs, PARIS, "--allow-tools", "weather", given=url)
            assert ran.out == "You said: Paris: 21 degrees, sunny\n"
        finally:
            server.kill()


@pytest.fixture
def config(tmp_path: Path) -> Iterator:
    def write(value: object) -> str:
        path = tmp_path / "mcp.json"
        path.write_text(value if isinstance(value, str) else json.dumps(value))
        return str(path)

    return write


@pytest.mark.full
def test_a_file_of_servers(run_mrs, config):
    entry = {"command": sys.executable, "args": [SCRIPT], "env": {"COLOUR": "red"}, "icon": "x"}
    path = config({"mcpServers": {"first": entry, "off": {"command": "x", "disabled": True}}})
    words = ("--mcp-config", path, "--allow-tools", "all", "-P", "call variables {}")
    ran = run_mrs(*words, "plain", "-m", "x")
    assert "COLOUR" in ran.out
    assert f"--mcp-config {path}: icon of first is ignored" in ran.err


def test_servers_have_names_of_their_own(config):
    path = config({"mcpServers": {"a": {"url": "https://b.c/mcp", "headers": {"X": "y"}}}})
    assert read_servers(["a -v", "a", "python x/a.py", "https://a/mcp"], path).servers == (
        McpServer("a", ("a", "-v")),
        McpServer("a-2", ("a",)),
        McpServer("a-3", ("python", "x/a.py")),
        McpServer("a-4", url="https://a/mcp"),
        McpServer("a-5", url="https://b.c/mcp", headers={"X": "y"}),
    )


@pytest.mark.full
def test_tools_of_the_same_name_are_told_apart(run_mrs):
    ran = run_mrs(
        *("--mcp", COMMAND, "--mcp", COMMAND, "--allow-tools", "all"),
        *("-P", 'call mcp_server-2.weather {"city": "Rome"}', "plain", "-m", "x"),
    )
    assert ran.out == "You said: Rome: 21 degrees, sunny\n"


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("{", "is not JSON"),
        ({"servers": []}, "has no mcpServers"),
        ({"mcpServers": {"a": 3}}, "the server a is not an object"),
        ({"mcpServers": {"a": {}}}, "the server a is not complete"),
        ({"mcpServers": {"a": {"command": "x", "args": "y"}}}, "the server a is not complete"),
        ({"mcpServers": {"a": {"command": "x", "env": {"A": 1}}}}, "the server a is not complete"),
        ({"mcpServers": {"a": {"url": "x", "type": "sse"}}}, "the server a has the type sse"),
    ],
)
def test_damaged_files_of_servers(run_mrs, config, value, why):
    ran = run_mrs("--mcp-config", config(value), "-P", "hello", "plain", "-m", "x")
    assert (ran.code, ran.models) == (2, [])
    assert why in ran.err


def test_without_the_package(run_mrs, monkeypatch):
    found = util.find_spec
    monkeypatch.setattr(
        mcp_connections, "find_spec", lambda name: None if name == "mcp" else found(name)
    )
    ran = ask(run_mrs, "hello")
    assert "--mcp needs the package mcp: pip install 'mcp>=2,<3'" in ran.err


@pytest.mark.full
def test_ctrl_c_stops_a_call_and_keeps_the_chat(chat):
    pytest.importorskip("pexpect")
    child = chat("--mcp", COMMAND, "--allow-tools", "hang")
    child.send("call hang {}\r")
    child.expect_exact("calling hang")
    time.sleep(0.5)
    child.sendintr()
    child.expect_exact("stopped")
    child.expect_exact(PROMPT)
    child.send("history\r")
    child.expect_exact("You said: none")


def test_no_tools(talk):
    assert 'there are no tools: start mrs with --mcp "COMMAND" or --mcp URL' in talk("\\tools").err
