"""Files that users give are bounded before they are read: one line, in little memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="peaks are read from /proc")

READERS = {
    "topology": "from mrs.topology import read_topology as read",
    "models": "from mrs_cli.parsing.models_file import _json as read",
    "plan": "from mrs.plan.report.replay import _read; read = lambda path: _read(Path(path))",
    "ring": "from mrs.distributed.peer_variables import _ring_config as read",
    "chat": "from mrs_cli.chat.saved_chat import load as read",
}
PROGRAM = """
import re
import sys
from pathlib import Path
from mrs.errors import MrsError
{}
try:
    read(sys.argv[1])
except MrsError as error:
    print(error)
peak = re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())
print(peak[1], file=sys.stderr)
"""
#: Imports alone need about 60 MiB; a saved chat or plan of 64 MiB is still read.
MOST_BYTES = 400 * 1024**2


def read(kind: str, path: Path) -> str:
    """What the reader of these files says, in a process whose peak of memory is checked."""
    command = [sys.executable, "-c", PROGRAM.format(READERS[kind]), str(path)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        said, peak_kib = process.stdout.read(), process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, peak_kib
    assert int(peak_kib) * 1024 < MOST_BYTES  # not `ru_maxrss`, which begins with the parent's
    assert usage.ru_utime < 20
    return said


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", READERS)
def test_a_huge_file_is_refused_before_it_is_read(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    os.truncate(path, 16 * 1024**3)  # sparse: it takes no space
    said = read(kind, path)
    assert "it has more than" in said
    assert said.count("\n") == 1


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", READERS)
def test_deep_nesting_is_one_line(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text('{"version": ' + "[" * 30_000 + "]" * 30_000 + "}")
    assert read(kind, path).count("\n") == 1


def test_aliases_in_a_topology_cost_nothing(tmp_path: Path) -> None:
    """Eight lists of ten aliases each would be a text of 10^9 elements."""
    lists = "".join(
        f"x{i}: &x{i} [{', '.join([f'*x{i - 1}' if i else 'q4k'] * 10)}]\n" for i in range(9)
    )
    (tmp_path / "file").write_text(f"{lists}0: {{isq: *x8}}\n")
    assert "it has an alias" in read("topology", tmp_path / "file")
