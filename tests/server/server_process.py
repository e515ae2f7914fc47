"""A server that is the program `mrs` in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from pathlib import Path

from support.waiting import PATIENCE_S, until

MRS = [sys.executable, "-m", "mrs_cli"]
_SLOW_MRS = [sys.executable, str(Path(__file__).with_name("slow_mrs.py"))]


class Process:
    """`mrs` in a process of its own; `lines` are those of its standard error."""

    def __init__(self, *words: str, slow: bool = False) -> None:
        command = _SLOW_MRS if slow else MRS
        self.process = subprocess.Popen(
            [*command, *words],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        try:
            until(lambda: any("serving" in line for line in self.lines))
        except AssertionError:
            self.process.kill()
            raise
        found = re.search(r"http://[^/]+", next(line for line in self.lines if "serving" in line))
        assert found
        self.url = found[0]

    def _read(self) -> None:
        assert self.process.stderr is not None
        self.lines.extend(iter(self.process.stderr.readline, ""))

    def end(self) -> int:
        code = self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        return code
