"""The demo model through a real `mrs`: a script's pipe, and a chat in a terminal."""

from __future__ import annotations

import json
import subprocess

import pytest
from mrs_runs import REAL_MRS

LONG_QUESTION = "What is a KV cache, and what is it good for when a long prompt comes again? " * 2


@pytest.mark.full
@pytest.mark.parametrize("selector", ["plain", pytest.param("gguf", marks=pytest.mark.full)])
def test_each_line_of_a_pipe_is_answered(process_env, selector):
    ran = subprocess.run(
        [*REAL_MRS, "-q", "--each-line", "--temperature", "0", selector, "-m", "demo"],
        input="What is the capital of France?\nWho are you?\n",
        env=process_env,
        capture_output=True,
        check=True,
        text=True,
    )
    france, itself = ran.stdout.splitlines()
    assert "Paris" in france
    assert "demo model" in itself
    assert ran.stderr == ""


@pytest.mark.full
def test_a_later_run_goes_on_from_files(process_env, tmp_path):
    def asked(*flags: str) -> dict[str, object]:
        ran = subprocess.run(
            [*REAL_MRS, "--temperature", "0", "--json", *flags, "plain", "-m", "demo"],
            input=f"{LONG_QUESTION}\n",
            env=process_env,
            capture_output=True,
            check=True,
            text=True,
        )
        return json.loads(ran.stdout)

    flags = ["--prefix-cache-dir", str(tmp_path / "kept")]
    cold, first, second = asked(), asked(*flags), asked(*flags)
    assert first["cached_tokens"] == 0
    assert second["cached_tokens"] == second["prompt_tokens"] - 1
    assert cold["text"] == first["text"] == second["text"]
    assert asked("--isq", "q8_0", *flags)["cached_tokens"] == 0


@pytest.mark.full
def test_a_chat_in_a_terminal(process_env):
    pexpect = pytest.importorskip("pexpect")
    child = pexpect.spawn(
        REAL_MRS[0],
        [*REAL_MRS[1:], "--temperature", "0", "-i", "-v", "plain", "-m", "demo"],
        env=process_env,
        encoding="utf-8",
        dimensions=(30, 80),
        timeout=120,
    )
    try:
        child.expect("demo: llama")
        child.expect_exact("\u203a ")
        for question, answer in (("What is the capital of Japan?", "Tokyo"), ("Hello!", "\\w+")):
            child.send(f"{question}\r")
            child.expect(answer)
            child.expect("(?s)first token .*?prompt \\d+ tokens.*?reply \\d+ tokens")
            child.expect_exact("\u203a ")
        child.send("\x04")
        child.expect(pexpect.EOF)
        child.wait()
        assert child.exitstatus == 0
    finally:
        child.close(force=True)
