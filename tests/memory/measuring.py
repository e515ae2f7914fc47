"""Run a configuration in a fresh process and take the operating system's word for its memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from configurations import Configuration, model_path
from memory_group import memory_group

#: What the kernel charges to a group for itself: at most 13 MiB were seen.
KERNEL_BYTES = 16 * 2**20

_CHILD = Path(__file__).with_name("memory_run.py")


@dataclass(frozen=True)
class Bounds:
    """What a plan says of the process, in bytes."""

    low: int
    high: int
    loading: int
    needed: int


@dataclass(frozen=True)
class Measured(Bounds):
    """The same, and the process' peaks after loading and at the end."""

    loaded_peak: int
    peak: int


def measured(configuration: Configuration, folder: Path) -> Measured:
    return Measured(**_output(configuration, folder))


def planned(configuration: Configuration, folder: Path) -> Bounds:
    return Bounds(**_output(configuration, folder, plan=True))


def exit_code_within(limit_bytes: int, configuration: Configuration, folder: Path) -> int | None:
    """How a run ends in a control group with that limit; None where no group can be made."""
    with memory_group(limit_bytes) as group:
        if group is None:
            return None
        return _run(configuration, folder, before=lambda: _enter(group)).returncode


def _enter(group: Path) -> None:
    group.write_text(str(os.getpid()))


def _output(configuration: Configuration, folder: Path, **more: Any) -> dict[str, int]:
    done = _run(configuration, folder, **more)
    if done.returncode:
        raise RuntimeError(f"exit code {done.returncode}: {done.stderr[-2000:]}")
    found: dict[str, int] = json.loads(done.stdout)
    return found


def _run(
    configuration: Configuration,
    folder: Path,
    before: Callable[[], None] | None = None,
    **more: Any,
) -> subprocess.CompletedProcess[str]:
    path = model_path(configuration, folder)
    request = folder / f"request-{os.getpid()}.json"
    request.write_text(json.dumps({**configuration.wish(path), **more}))
    return subprocess.run(
        [sys.executable, str(_CHILD), str(request)],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=before,
    )
