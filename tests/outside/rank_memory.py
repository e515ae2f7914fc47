"""What each process of a model reads and has in memory, by the operating system and by the plan.

    python tests/outside/rank_memory.py

`mrs plan` loads a random model of 270 MB in several processes. Bytes read are `rchar` of
/proc/PID/io after the first look at a process, memory is VmHWM of /proc/PID/status. Each process
has to read its own weights only, and to stay within a tenth of its planned memory.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / name) for name in ("tests", "core", "cli")]

from support.model_files import SMALL, write_model

WAYS = {
    "2 stages": ["--workers", "1"],
    "3 stages": ["--workers", "2"],
    "2 shares": ["--tensor-parallel-size", "2"],
    "2 stages of 2": ["--workers", "3", "--tensor-parallel-size", "2"],
}
SIZES = {
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 4096,
}
#: Code, headers and samples of the weights that a process reads, too.
OTHER_BYTES = 120 << 20
MOST_ERROR = 0.1


class Watched:
    """The bytes that a process has read, and the most memory that it had."""

    def __init__(self, pid: int) -> None:
        self.pid, self.peak_bytes, self.first_bytes, self.read_bytes = pid, 0, -1, 0

    def look(self) -> tuple[int, int] | None:
        """The bytes that it has read by now, and its peak."""
        try:
            read = re.search(r"rchar: (\d+)", Path(f"/proc/{self.pid}/io").read_text())
            peak = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{self.pid}/status").read_text())
        except OSError:
            return None
        return (int(read[1]), 1024 * int(peak[1])) if read and peak else None

    def keep(self, look: tuple[int, int]) -> None:
        self.first_bytes = look[0] if self.first_bytes < 0 else self.first_bytes
        self.read_bytes, self.peak_bytes = look[0] - self.first_bytes, look[1]


def children_of(pid: int) -> set[int]:
    return {each.pid for each in psutil.Process(pid).children()}


def words_of(pid: int) -> list[str]:
    """Its command line; nothing if it has just ended."""
    try:
        return psutil.Process(pid).cmdline()
    except psutil.Error:
        return []


def faults_of(way: str, flags: list[str], model: Path) -> list[str]:
    command = [sys.executable, "-m", "mrs_cli", "plan", "--json", "--cpu", "--max-seq-len", "512"]
    plan = subprocess.Popen(
        [*command, *flags, "-m", str(model)],
        env={**os.environ, "PYTHONPATH": f"{ROOT}/core:{ROOT}/cli"},
        stdout=subprocess.PIPE,
        text=True,
    )
    watched = {plan.pid: Watched(plan.pid)}
    workers: set[int] = set()
    while plan.poll() is None:
        workers |= {pid for pid in children_of(plan.pid) if "worker" in words_of(pid)}
        looks = {pid: watched.setdefault(pid, Watched(pid)).look() for pid in {plan.pid, *workers}}
        if workers <= children_of(plan.pid):  # what a child has read is its parent's afterwards
            for pid, look in looks.items():
                if look is not None:
                    watched[pid].keep(look)
        time.sleep(0.05)
    assert plan.stdout is not None
    ranks = json.load(plan.stdout)["processes"]["ranks"]
    others = sorted((watched[pid] for pid in workers), key=lambda each: -each.read_bytes)
    found, seen = [], [watched[plan.pid], *others]
    planned = [ranks[0], *sorted(ranks[1:], key=lambda each: -each["planned"]["weight_bytes"])]
    for rank, own in zip(planned, seen, strict=True):
        weights, total = rank["planned"]["weight_bytes"], rank["planned"]["total_bytes"]
        name = rank["name"].split(" (")[0]
        print(
            f"| {way} | {name} | {weights / 1e6:.0f} | {own.read_bytes / 1e6:.0f} | "
            f"{total / 1e6:.0f} | {own.peak_bytes / 1e6:.0f} |",
            flush=True,
        )
        if not weights <= own.read_bytes <= weights + OTHER_BYTES:
            found.append(f"{way}, {name}: reads {own.read_bytes} instead of {weights}")
        if own.peak_bytes > (1 + MOST_ERROR) * total:
            found.append(f"{way}, {name}: has {own.peak_bytes} instead of {total}")
    return found


def main() -> int:
    print("| processes | rank | MB of weights planned | read | MB in all planned | at most |")
    print("| --- | --- | ---: | ---: | ---: | ---: |", flush=True)
    with tempfile.TemporaryDirectory() as name:
        config = {**SMALL, **SIZES}
        model = write_model(Path(name) / "model", config, "BF16", std=0.05)
        found = [each for way, flags in WAYS.items() for each in faults_of(way, flags, model)]
    print(*found or ["each process reads and has its own part"], sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
