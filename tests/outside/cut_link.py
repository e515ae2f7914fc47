"""A link that is cut in the middle of a reply: both sides end, and the conversation goes on.

    python tests/outside/cut_link.py

A worker joins a server through a relay, which after some tokens of the second answer forwards
nothing any more. Server and worker have to end within ten seconds, with a line that names the other
side. Both are started again, and have to write the second answer as if nothing had happened.
"""

from __future__ import annotations

import os
import queue
import re
import subprocess
import sys
import threading
import time
from contextlib import suppress

import openai
from slow_link import ROOT, Relay, free_port

MOST_S, DELAY_S, EXIT_CODE = 10.0, 0.004, 6
#: An overloaded machine takes its time to end a process that has said why.
EXIT_S = 30.0
PROGRAM = [sys.executable, "-m", "mrs_cli"]
QUESTIONS = ("What is a KV cache?", "Write a long story about a lighthouse.")
#: No end token, so that an answer takes its time.
ENDLESS = {"max_tokens": 150, "temperature": 0, "logit_bias": {"2": -100}}
LINES = {"server": r"rank 1 \(.*does not answer", "worker": r"\(rank 0\) does not answer"}


class Sides:
    """A server and a worker with a relay between them."""

    def __init__(self) -> None:
        port = free_port()
        self.relay = Relay(port, DELAY_S)
        self._said: dict[str, list[tuple[float, str]]] = {"server": [], "worker": []}
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        listen = ["--cpu", "--wait-for", "1", "--listen", f"127.0.0.1:{port}"]
        join = ["worker", "--once", "--join", f"127.0.0.1:{self.relay.port}"]
        self.processes = {
            "server": self._start("server", [*listen, "serve", "-p", "0", "-m", "demo"]),
            "worker": self._start("worker", join),
        }
        url = None
        while url is None:
            url = re.search(r"http://[^/\s]+", self._lines.get(timeout=300))
        self.client = openai.OpenAI(base_url=f"{url[0]}/v1", api_key="-", timeout=300)

    def _start(self, name: str, words: list[str]) -> subprocess.Popen[str]:
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}/core:{ROOT}/cli"}
        process = subprocess.Popen(
            [*PROGRAM, *words], env=environment, stderr=subprocess.PIPE, text=True
        )
        threading.Thread(target=self._read, args=(name, process), daemon=True).start()
        return process

    def _read(self, name: str, process: subprocess.Popen[str]) -> None:
        for line in process.stderr or ():
            self._said[name].append((time.monotonic(), line))
            self._lines.put(line)

    def faults(self, since_s: float) -> list[str]:
        """What is wrong with the end of both; it is waited for."""
        found = []
        for name, process in self.processes.items():
            with suppress(subprocess.TimeoutExpired):
                process.wait(EXIT_S)
            said = [each for each in self._said[name] if re.search(LINES[name], each[1])]
            at_s, line = said[0] if said else (float("inf"), "-")
            code = process.poll()
            print(
                f"{name}: exit code {code}, after {at_s - since_s:.1f} s: {line.strip()}",
                flush=True,
            )
            if code != EXIT_CODE or at_s - since_s > MOST_S:
                found.append(f"{name} ends with {code}: {self._said[name]}")
        return found

    def end(self) -> None:
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            process.wait(60)


def answer(sides: Sides, messages: list[dict[str, str]], cut_after: int = 0) -> str:
    """The answer as it streams; the link is cut after so many pieces."""
    stream = sides.client.chat.completions.create(
        model="demo",
        messages=messages,  # type: ignore[arg-type]
        stream=True,
        **ENDLESS,  # type: ignore[call-overload]
    )
    text = ""
    for number, chunk in enumerate(stream, 1):
        text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
        if number == cut_after:
            sides.relay.is_cut = True
    return text


def main() -> int:
    first, second = ({"role": "user", "content": text} for text in QUESTIONS)
    sides = Sides()
    try:
        reply = {"role": "assistant", "content": answer(sides, [first])}
        expected = answer(sides, [first, reply, second])
        print(f"before the cut: {expected[:60]!r} …", flush=True)
        since_s = time.monotonic()
        with suppress(openai.APIError):
            answer(sides, [first, reply, second], cut_after=20)
            print("the answer has not failed", flush=True)
        faults = sides.faults(since_s)
    finally:
        sides.end()
    sides = Sides()
    try:
        if answer(sides, [first, reply, second]) != expected:
            faults.append("the answer after the restart is another one")
    finally:
        sides.end()
    print(*faults or ["the conversation goes on after the restart"], sep="\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
