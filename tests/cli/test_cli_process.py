"""`mrs` as a process: signals, closed pipes, and what it imports."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys

import pytest
from mrs_runs import FAKE_MRS

from support.suites import first

HEAVY = ("torch", "rich", "prompt_toolkit", "tokenizers", "jinja2", "huggingface_hub", "gguf")
HEAVY += ("safetensors", "numpy", "transformers", "psutil", "pynvml", "platformdirs")


def finished(process) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("sent", "line"), [(signal.SIGINT, "mrs: interrupted\n"), (signal.SIGTERM, "")]
)
def test_a_signal_while_loading(start_mrs, sent, line):
    process = start_mrs("plain", "-m", "slow", "-P", "hello")
    assert process.stderr.readline() == "slow load begins\n"
    process.send_signal(sent)
    assert finished(process) == (130, "", line)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("sent", "line"), [(signal.SIGINT, "mrs: interrupted\n"), (signal.SIGTERM, "")]
)
def test_a_signal_while_answering_keeps_what_was_said(start_mrs, sent, line):
    process = start_mrs("-q", "plain", "-m", "x", "-P", "forever")
    assert process.stdout.read(4) == "0 1 "
    process.send_signal(sent)
    code, out, err = finished(process)
    assert (code, err) == (130, line)
    assert re.fullmatch(r"(\d+ )*\n?", out)


@pytest.mark.full
def test_an_interrupted_json_reply_says_so(start_mrs):
    process = start_mrs("--json", "plain", "-m", "x", "-P", "forever")
    assert process.stderr.readline().startswith("fake:")
    process.send_signal(signal.SIGINT)
    code, out, _ = finished(process)
    assert code == 130
    assert not out or json.loads(out)["finish_reason"] == "cancelled"


def test_a_reader_that_leaves(start_mrs):
    process = start_mrs("-q", "plain", "-m", "x", "-P", "forever")
    assert process.stdout.read(2) == "0 "
    process.stdout.close()
    assert process.wait(timeout=120) == 0
    assert process.stderr.read() == ""


def test_help_into_a_pipe_that_is_closed(process_env):
    line = '"$0" -m mrs_cli --help | head -1; echo "${PIPESTATUS[0]}"'
    ran = subprocess.run(
        ["bash", "-c", line, sys.executable],
        env=process_env,
        capture_output=True,
        check=False,
        text=True,
    )
    assert ran.stderr == ""
    assert ran.stdout.splitlines()[0].startswith("Usage: mrs ")
    assert ran.stdout.splitlines()[1] == "0"


@pytest.mark.full
@pytest.mark.parametrize("closed", first(1, [">&-", "2>&-", "<&-"]))
def test_closed_streams(process_env, closed):
    line = f'"$0" "$1" -q plain -m x -P hello {closed}; echo " $?" >&3'
    ran = subprocess.run(
        ["bash", "-c", f"exec 3>&1; {line}", *FAKE_MRS],
        env=process_env,
        capture_output=True,
        check=False,
        text=True,
    )
    assert ran.stdout.endswith(" 0\n")
    assert ran.stderr == ""


@pytest.mark.full
def test_a_prompt_and_a_pipe_of_broken_utf8(process_env):
    ran = subprocess.run(
        [*FAKE_MRS, "plain", "-m", "x", "--json", "-P", b"\xff!"],
        env=process_env,
        capture_output=True,
        check=False,
    )
    assert json.loads(ran.stdout)["text"] == "You said: \ufffd!"
    ran = subprocess.run(
        [*FAKE_MRS, "plain", "-m", "x", "--json"],
        env=process_env,
        input=b"\xff!\n",
        capture_output=True,
        check=False,
    )
    assert json.loads(ran.stdout)["text"] == "You said: \ufffd!"


@pytest.mark.full
def test_a_terminal_that_knows_no_snow(process_env):
    ran = subprocess.run(
        [*FAKE_MRS, "plain", "-m", "x", "-P", "snow"],
        env={**process_env, "PYTHONIOENCODING": "latin-1:strict"},
        capture_output=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (0, "? snow, d\u00e9j\u00e0 vu\n".encode("latin-1"))


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["--help"], 0), (["gguf", "--help"], 0), (["--version"], 0), (["plain"], 2)],
)
def test_light_commands_import_nothing_heavy(process_env, arguments, code):
    program = (
        "import sys; from mrs_cli.app import main; code = main(); "
        "print(*sorted({name.split('.')[0] for name in sys.modules}), file=sys.stderr); "
        "sys.exit(code)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=process_env,
        capture_output=True,
        check=False,
        text=True,
    )
    assert ran.returncode == code
    imported = set(ran.stderr.splitlines()[-1].split())
    assert "typer" in imported
    assert not imported & set(HEAVY)


@pytest.mark.full
def test_no_colour_codes_in_a_pipe(process_env):
    ran = subprocess.run(
        [*FAKE_MRS, "plain", "-m", "missing", "-P", "x"],
        env={**process_env, "FORCE_COLOR": "1"},
        capture_output=True,
        check=False,
        text=True,
    )
    assert ran.returncode == 3
    assert "\x1b" not in ran.stderr


@pytest.mark.full
def test_completion_answers(process_env):
    variables = {"_MRS_COMPLETE": "complete_bash", "COMP_WORDS": "mrs --tok", "COMP_CWORD": "1"}
    ran = subprocess.run(
        [sys.executable, "-m", "mrs_cli"],
        env={**process_env, **variables},
        capture_output=True,
        check=False,
        text=True,
    )
    assert ran.stdout.split() == ["--token-source"]
