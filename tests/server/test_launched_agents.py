"""`mrs launch` with programs in the place of coding agents: each asks the server one thing."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from running_server import running

from mrs.server.settings import ServerSettings
from mrs_cli.app import main
from mrs_cli.environment import Environment
from support.waiting import until

AGENT = f"""#!{sys.executable}
import json, os, sys, tomllib, urllib.request
from pathlib import Path

name, words = Path(sys.argv[0]).name, sys.argv[1:]
given = {{words[i]: words[i + 1] for i in range(0, len(words) - 1) if words[i][:2] == "--"}}
if name == "claude":
    assert "ANTHROPIC_API_KEY" not in os.environ
    url, key = os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages", os.environ["ANTHROPIC_AUTH_TOKEN"]
    model = os.environ["ANTHROPIC_MODEL"]
    body = {{"messages": [{{"role": "user", "content": "Hi"}}], "max_tokens": 8}}
elif name == "codex":
    settings = tomllib.loads("\\n".join(b for a, b in zip(words, words[1:]) if a == "-c"))
    provider = settings["model_providers"][settings["model_provider"]]
    assert provider["wire_api"] == "responses"
    url, key = provider["base_url"] + "/responses", os.environ[provider["env_key"]]
    model, body = settings["model"], {{"input": "Hi", "max_output_tokens": 8}}
elif name == "opencode":
    config = json.loads(os.environ["OPENCODE_CONFIG_CONTENT"])
    provider, _, model = config["model"].partition("/")
    options = config["provider"][provider]["options"]
    assert model in config["provider"][provider]["models"]
    url, key = options["baseURL"] + "/chat/completions", os.environ[options["apiKey"][5:-1]]
    body = {{"messages": [{{"role": "user", "content": "Hi"}}], "max_tokens": 8}}
else:
    url, key = given["--openai-api-base"] + "/chat/completions", os.environ["OPENAI_API_KEY"]
    model = given["--model"].removeprefix("openai/")
    body = {{"messages": [{{"role": "user", "content": "Hi"}}], "max_tokens": 8}}
headers = {{"authorization": f"Bearer {{key}}", "content-type": "application/json"}}
data = json.dumps({{"model": model, **body}}).encode()
with urllib.request.urlopen(urllib.request.Request(url, data, headers)) as answer:
    found = {{"status": answer.status, "model": json.load(answer)["model"], "url": url, "key": key}}
print(json.dumps({{**found, "words": words}}), flush=True)
sys.exit(7)
"""
Launch = Callable[..., tuple[int, str]]


@pytest.fixture
def launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Launch:
    """Launches with the agents of the folder `bin`; gives exit code and standard error."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("ANTHROPIC_API_KEY", "of a person")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)

    def run(*words: str, program: str = AGENT) -> tuple[int, str]:
        path = tmp_path / "bin" / words[0]
        path.parent.mkdir(exist_ok=True)
        path.write_text(program)
        path.chmod(0o755)
        err = io.StringIO()
        environment = Environment(io.StringIO(), io.StringIO(), err, os.environ)
        return main(["launch", *words], environment), err.getvalue()

    return run


@pytest.mark.parametrize("name", ["claude", "codex", "opencode", "aider"])
def test_an_agent_asks_a_server_of_its_own(launch, capfd, tmp_path, name):
    code, err = launch(name, "-m", "demo", "--", "--thinking", "-p")
    asked = json.loads(capfd.readouterr().out)
    assert code == 7
    assert (asked["status"], asked["model"]) == (200, "demo")
    assert asked["url"].startswith("http://127.0.0.1:")
    assert len(asked["key"]) > 20
    assert asked["words"][-2:] == ["--thinking", "-p"]
    assert "warning: the model's context is 2,048 tokens" in err
    assert "status=200" in (tmp_path / "mrs" / "launch.log").read_text()
    assert list((tmp_path / "mrs" / "servers").iterdir()) == []


@pytest.mark.parametrize("keys", [(), ("secret",)], ids=["open", "with a key"])
def test_a_server_that_needs_no_key_is_used_again(launch, capfd, tmp_path, keys):
    folder = tmp_path / "mrs" / "servers"
    folder.mkdir(parents=True)
    settings = ServerSettings(api_keys=keys)
    with running(settings, local=folder / "1.sock", cpu=False, speculate="ngram") as server:
        code, _ = launch("aider", "-m", "demo")
        asked = json.loads(capfd.readouterr().out)
        assert (code, asked["status"]) == (7, 200)
        assert asked["url"].startswith(server.url) == (not keys)


def test_a_signal_ends_the_agent(launch, tmp_path):
    runs = tmp_path / "runs"
    waiting = f"#!{sys.executable}\nimport time\nopen('{runs}', 'w')\ntime.sleep(600)\n"

    def stop() -> None:
        until(runs.exists)
        os.kill(os.getpid(), signal.SIGTERM)

    stopping = threading.Thread(target=stop)
    stopping.start()
    code, _ = launch("aider", "-m", "demo", program=waiting)
    stopping.join()
    assert code == 128 + signal.SIGTERM


def test_what_cannot_be_launched_is_refused(launch, monkeypatch, tmp_path):
    err = io.StringIO()
    environment = Environment(io.StringIO(), io.StringIO(), err, {"PATH": str(tmp_path)})
    assert main(["launch", "codex", "-m", "demo"], environment) == 3
    assert "Codex is not installed: npm install -g @openai/codex" in err.getvalue()
    assert main(["launch", "vim", "-m", "demo"], environment) == 2
    assert "give one of claude, codex, opencode, aider" in err.getvalue()
    assert main(["launch", "codex"], environment) == 2
    assert "mrs launch codex -m ID" in err.getvalue()
