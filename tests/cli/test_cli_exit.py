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


def test_outside_of_imports_it_is_raised_at_once():
    def at_once() -> None:
        with interruptible(Environment.of_process()):
            os.kill(os.getpid(), signal.SIGINT)
            pytest.fail("was not raised")

    with pytest.raises(KeyboardInterrupt):
        at_once()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
