"""Kills and stops processes of a model at random; all others have to end, and to say why.

    python tests/outside/random_kills.py 40

Each round starts a coordinator and two or three workers as a person would, waits for a moment in
the meeting, while loading, in a prompt or while decoding, and sends SIGKILL or SIGSTOP to one of
them. After that no other process may hang, end with another code than 6, or be left, and no port
may be open.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "core"), str(ROOT / "cli")]

from support.model_files import DEMO, SMALL, write_model

TAG = "MRS_RANDOM_KILLS"
PHASES = ("meeting", "loading", "prompt", "decoding")
SIZES = {**SMALL, "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 8}
#: Silence counts after 6 s; the rest is for a machine that does other things, too.
LIMIT_S = 30.0
WAIT_LIMIT_S = 90
#: What a busy machine takes to start a program, which waits for others only from then on.
START_S = 120.0
#: What may be the last words of a process that ends because of another one.
NAMED = re.compile(
    r"rank \d \(|the worker \S+ at|\(rank 0\) (has ended|does not answer|cannot be reached)"
    r"|worker with process id|have not come within|the coordinator has ended before"
    r"|does not answer as a coordinator"
)


class Round:
    """A coordinator and its workers, and what becomes of them."""

    def __init__(self, seed: int, model: Path, folder: Path) -> None:
        self.chance = random.Random(seed)
        self.phase = PHASES[seed % len(PHASES)]
        self.is_local = self.chance.random() < 0.5
        self.sent = self.chance.choice([signal.SIGKILL, signal.SIGSTOP])
        self.folder, self.tag = folder, f"{os.getpid()}-{seed}"
        self.model = model
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.port = self.victim = 0

    def start(self) -> None:
        with socket_of_any_port() as found:
            self.port = found.getsockname()[1]
        text = "What is a KV cache? " * 150
        own = ["--workers", "2"] if self.is_local else ["--wait-for", "2"]
        if self.is_local and self.chance.random() < 0.5:  # two stages of two
            own = ["--workers", "3", "--tensor-parallel-size", "2"]
        own += ["--listen", f"127.0.0.1:{self.port}", "--wait-limit", str(WAIT_LIMIT_S), "--cpu"]
        ask = ["-P", text, "--max-tokens", "1500", "--temperature", "0", "--logit-bias", "2=-100"]
        self._run("head", [*own, *ask, "plain", "-m", str(self.model)])
        if not self.is_local:
            for name in ("worker a", "worker b"):
                join = ["worker", "--once", "--join", f"127.0.0.1:{self.port}"]
                self._run(name, [*join, "--allow-model", str(self.model)])

    def wait(self) -> None:
        """Until the phase has begun, and a random time more."""
        if self.phase == "meeting":
            time.sleep(self.chance.random() * 2.5)
            return
        until = {"loading": self._has_met, "prompt": self._has_loaded, "decoding": self._has_token}
        wait_until(lambda: until[self.phase]() or self.processes["head"].poll() is not None, 400)
        time.sleep(
            self.chance.random() * {"loading": 1.0, "prompt": 0.4, "decoding": 1.0}[self.phase]
        )

    def strike(self) -> str:
        """Send the signal to one of the processes; its name."""
        everyone = {**{name: each.pid for name, each in self.processes.items()}, **self._children()}
        name = self.chance.choice(sorted(everyone))
        self.victim = everyone[name]
        os.kill(self.victim, self.sent)
        return name

    def end(self, struck: str) -> tuple[float, list[str]]:
        """Seconds until all others have ended, and what was wrong."""
        since_s, faults = time.monotonic(), []
        others = {n: p for n, p in self.processes.items() if p.pid != self.victim}
        limit_s = LIMIT_S
        if self.phase in ("meeting", "loading"):
            limit_s += WAIT_LIMIT_S + START_S
        for name, process in others.items():
            try:
                process.wait(max(0.1, limit_s - (time.monotonic() - since_s)))
            except subprocess.TimeoutExpired:
                if not (struck == "head" and "waiting for a coordinator" in self.said(name)):
                    faults.append(f"{name} hangs: {self.said(name)[-300:]!r}")
                continue
            if process.returncode != 6 or not NAMED.search(self.said(name)):
                faults.append(f"{name} ends with {process.returncode}: {self.said(name)[-300:]!r}")
        wait_until(lambda: not self.left(struck), LIMIT_S, must=False)
        took_s = time.monotonic() - since_s
        faults += [f"left: {' '.join(words_of(each))[-80:]}" for each in self.left(struck)]
        for process in self._tagged():
            process.kill()
        for each in self.processes.values():
            each.wait()
        if self.is_listening():
            faults.append(f"port {self.port} is open")
        return took_s, faults

    def left(self, struck: str) -> list[psutil.Process]:
        """Processes of this round that should have ended, the victim aside."""
        waits = [
            each.pid
            for name, each in self.processes.items()
            if struck == "head" and "waiting for a coordinator" in self.said(name)
        ]
        found = [each for each in self._tagged() if each.pid not in (self.victim, *waits)]
        if struck == "head" and self.sent == signal.SIGSTOP:  # its renderer waits for it
            found = [each for each in found if "worker" in words_of(each)]
        return found

    def said(self, name: str) -> str:
        return (self.folder / f"{self.tag} {name}.err").read_text(errors="replace")

    def is_listening(self) -> bool:
        row = re.compile(rf"^\s*\d+: [0-9A-F]+:{self.port:04X} \S+ 0A ", re.MULTILINE)
        return bool(row.search(Path("/proc/net/tcp").read_text()))

    def _run(self, name: str, words: list[str]) -> None:
        path = self.folder / f"{self.tag} {name}"
        with path.with_name(f"{path.name}.err").open("wb") as err, path.open("wb") as out:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", "mrs_cli", *words],
                env={**os.environ, TAG: self.tag, "PYTHONPATH": f"{ROOT}/core:{ROOT}/cli"},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )

    def _children(self) -> dict[str, int]:
        found = [each for each in self._tagged() if "worker" in words_of(each)]
        return {f"child {n}": each.pid for n, each in enumerate(found)} if self.is_local else {}

    def _tagged(self) -> list[psutil.Process]:
        found = []
        for each in psutil.process_iter():
            try:
                if each.environ().get(TAG) == self.tag and each.status() != psutil.STATUS_ZOMBIE:
                    found.append(each)
            except psutil.Error:
                continue
        return found

    def _has_met(self) -> bool:
        row = re.compile(rf"^\s*\d+: [0-9A-F]+:{self.port:04X} \S+ 01 ", re.MULTILINE)
        return len(row.findall(Path("/proc/net/tcp").read_text())) >= 2

    def _has_loaded(self) -> bool:
        return "layers (" in self.said("head")

    def _has_token(self) -> bool:
        return (self.folder / f"{self.tag} head").stat().st_size > 0


def words_of(process: psutil.Process) -> list[str]:
    """Its command line; nothing if it has just ended."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def socket_of_any_port():  # type: ignore[no-untyped-def]
    import socket

    return socket.create_server(("127.0.0.1", 0))


def wait_until(is_so: Callable[[], bool], seconds: float, *, must: bool = True) -> None:
    until_s = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > until_s:
            if must:
                raise TimeoutError("waited in vain")
            return
        time.sleep(0.02)


def model_in(folder: Path) -> Path:
    """A model with random weights that takes its time, with the tokenizer of the demo model."""
    config = json.loads((DEMO / "config.json").read_text())
    keys = {"head_dim": 64, "num_attention_heads": 8, "max_position_embeddings": 8192}
    made = write_model(folder / "model", {**config, **SIZES, **keys}, std=0.05)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        if (DEMO / name).exists():
            shutil.copy(DEMO / name, made)
    return made


def main(rounds: int, first: int = 0) -> int:
    kinds: Counter[str] = Counter()
    longest_s, bad = 0.0, 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = model_in(folder)
        for seed in range(first, first + rounds):
            each = Round(seed, model, folder)
            each.start()
            each.wait()
            if each.processes["head"].poll() is not None:  # this machine was too busy
                each.end("")
                print(f"{seed}: no round, {each.said('head')[-200:]!r}", flush=True)
                continue
            struck = each.strike()
            took_s, faults = each.end(struck)
            kinds[each.phase] += 1
            longest_s, bad = max(longest_s, took_s), bad + bool(faults)
            start = "workers of its own" if each.is_local else "workers that join"
            what = f"{each.sent.name} of {struck}, {each.phase}, {start}: {took_s:.1f} s"
            print(f"{seed}: {what}", *faults or ["all ended"], sep="; ", flush=True)
    print(f"{rounds} rounds {dict(kinds)}, {bad} with faults, at most {longest_s:.1f} s")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:3])))
