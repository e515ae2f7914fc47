"""Streams that fail, little memory, and names and numbers without end: one line, the right code."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from mrs_runs import FAKE_MRS, REAL_MRS

from mrs.errors import MrsError, UsageError
from mrs_cli.chat import saved_chat
from mrs_cli.environment import Environment
from mrs_cli.exit import exit_code_of

LONG = "x" * 5000
FULL = Path("/dev/full")


def run(process_env, *arguments, command=FAKE_MRS, **streams) -> tuple[int, str]:
    """The exit code of a process, and its one line on standard error."""
    given = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, **streams}
    ran = subprocess.run(
        [*command, *arguments], stderr=subprocess.PIPE, env=process_env, text=True, timeout=120,
        check=False, **given,
    )  # fmt: skip
    assert len(ran.stderr.splitlines()) == 1
    assert len(ran.stderr) < 1500
    assert "internal error" not in ran.stderr
    return ran.returncode, ran.stderr


@pytest.mark.few(1)
@pytest.mark.skipif(not FULL.exists(), reason="there is no full device")
@pytest.mark.parametrize("arguments", [("--help",), ("-q", "plain", "-m", "x", "-P", "hello")])
def test_standard_output_on_a_full_disk(process_env, arguments):
    with FULL.open("w") as full:
        code, said = run(process_env, *arguments, stdout=full)
    assert code == 2
    assert said == f"mrs: error: standard output cannot be written ({os.strerror(errno.ENOSPC)})\n"


@pytest.mark.few(1)
@pytest.mark.skipif(os.name == "nt", reason="streams of POSIX")
@pytest.mark.parametrize("interactive", [(), ("-i",)])
def test_standard_input_that_can_only_be_written(process_env, interactive, tmp_path):
    with (tmp_path / "stream").open("w") as write_only:
        code, said = run(process_env, "-q", *interactive, "plain", "-m", "x", stdin=write_only)
    assert code == 2
    assert said.startswith("mrs: error: standard input cannot be read (")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the limit is kept by Linux")
def test_too_little_address_space_for_torch(process_env):
    limited = ["sh", "-c", 'ulimit -v 400000; exec "$@"', "sh", *REAL_MRS]
    code, said = run(process_env, "plain", "-m", "demo", "-P", "hello", command=limited)
    assert code == 4
    assert said.startswith("mrs: error: torch alone needs ")


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (MemoryError(), 4, "out of memory"),
        (ImportError("libtorch_cpu.so: failed to map segment from shared object"), 4, "memory"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), 4, "out of memory"),
        (PermissionError(errno.EACCES, "Permission denied", "/x"), 3, "cannot use /x (Permission"),
        (ValueError(LONG * 20), 1, "internal error: ValueError: xxx"),
        (UsageError(f"{LONG}\r\n{LONG}\ud800"), 2, "xxx"),
    ],
    ids=["memory", "mapping", "no memory", "file", "internal", "usage"],
)
def test_every_error_is_one_short_line(error, code, line, capsys):
    def fail() -> int:
        raise error

    assert exit_code_of(Environment.of_process(), [], fail) == code
    said = capsys.readouterr().err
    assert line in said
    assert said.count("\n") == 1
    assert len(said) < 1300


@pytest.mark.parametrize(
    "arguments",
    [
        ("plain", "-m", LONG),
        ("plain", "-m", f"./{LONG}"),
        ("gguf", "-m", f"./{LONG}.gguf"),
        ("gguf", "-m", ".", "-f", LONG),
        ("gguf", "-m", "demo", "-t", f"./{LONG}"),
        ("gguf", "-m", "demo", "--mmproj", LONG),
        ("plain", "-m", "~nobody-of-this-name/x"),
        ("plain", "-m", "demo", "--arch", LONG),
    ],
)
def test_names_without_end_and_homes_of_nobody(run_mrs, arguments):
    ran = run_mrs("plan", "--dry-run", *arguments)
    assert ran.code in (2, 3, 5)
    assert ran.err.startswith("mrs: error: ")
    assert "internal" not in ran.err
    assert ran.err.count("\n") == 1
    assert len(ran.err) < 1300


def test_a_plan_refuses_a_folder_without_a_name(run_mrs):
    ran = run_mrs("--prefix-cache-dir", "", "plan", "--dry-run", "plain", "-m", "demo")
    assert (ran.code, "--prefix-cache-dir is empty" in ran.err) == (2, True)


def test_a_chat_outlives_a_save_under_a_long_name(run_mrs):
    ran = run_mrs("-i", "-q", "plain", "-m", "x", stdin=f"hello\n\\save {LONG}\nagain\n")
    assert ran.code == 0
    assert "cannot be written (File name too long)" in ran.err


@pytest.mark.parametrize("name", ["top_k", "seed", "max_tokens", "temperature"])
def test_a_saved_chat_with_a_huge_number(tmp_path, name):
    path = tmp_path / "chat.json"
    content = {"format": "mrs-chat", "version": 1, "sampling": {name: 10**400}}
    path.write_text(json.dumps(content))
    with pytest.raises(UsageError, match="is 1000"):
        saved_chat.load(str(path))


def test_parts_of_an_error_are_short():
    error = MrsError("a" * 10**5, where="b\nc", hint="d" * 10**5)
    assert len(str(error)) < 1000
    assert error.where == "b c"


def test_no_character_turns_a_line_around():
    from mrs_cli.render.safe_text import one_line

    assert one_line("no model \u202efdp.exe\u2066\x1b[31m\n!") == "no model fdp.exe[31m !"
    assert one_line("שלום \u200f!") == "שלום \u200f!", "marks of one character stay"
