"""Ctrl-C while libraries are imported, which may swallow it or fail."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from mrs_cli.environment import Environment
from mrs_cli.exit import interruptible

SWALLOWS = """
import time
print("importing", flush=True)
while True:
    try:
        time.sleep(600)
    except BaseException:
        pass
"""
IMPORTS = """
from mrs_cli.exit import interruptible
from mrs_cli.environment import Environment
with interruptible(Environment.of_process()):
    import swallows
"""


def test_an_import_is_not_waited_for(tmp_path, process_env):
    (tmp_path / "swallows.py").write_text(SWALLOWS)
    (tmp_path / "run.py").write_text(IMPORTS)
    pipe = subprocess.PIPE
    command = [sys.executable, str(tmp_path / "run.py")]
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, env=process_env, text=True) as process:
        assert process.stdout.readline() == "importing\n"
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=120)
    assert (process.returncode, said) == (130, "mrs: interrupted\n")


LOADS = """
from mrs.events import LoadProgress
from mrs_cli.commands.loading import with_progress
from mrs_cli.environment import Environment

def work(on_progress):
    on_progress(LoadProgress("cpu", 1, 2))
    import swallows

with_progress(Environment.of_process(), "loading", work, quiet=False)
"""


def test_no_bar_follows_the_last_line(tmp_path, process_env):
    pexpect = pytest.importorskip("pexpect")
    (tmp_path / "swallows.py").write_text(SWALLOWS)
    (tmp_path / "run.py").write_text(LOADS)
    command = [str(tmp_path / "run.py")]
    child = pexpect.spawn(sys.executable, command, env={**process_env, "TERM": "xterm"}, timeout=60)
    child.expect_exact("importing")
    child.sendintr()
    child.expect_exact("mrs: interrupted\r\n")
    assert child.read() == b""
    child.close()
    assert child.exitstatus == 130


def test_outside_of_imports_it_is_raised_at_once():
    def at_once() -> None:
        with interruptible(Environment.of_process()):
            os.kill(os.getpid(), signal.SIGINT)
            pytest.fail("was not raised")

    with pytest.raises(KeyboardInterrupt):
        at_once()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
