"""Signals while 48 replies run and wait: how does each of them end, and the server?

    python tests/outside/closing.py

A third of the replies is not streamed. SIGTERM with time to drain lets all replies end; with too
little, the rest get an error; a second Ctrl-C ends them at once. Ends with exit code 0 if no reply
is cut off without an end, the server's exit code is right each time, and it says no more than that
it stops.
"""

from __future__ import annotations

import json
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from typing import Any, NamedTuple
from urllib.request import urlopen

from serving import server_process

REQUESTS = 48
AT_ONCE = 16
BUSY_S = 120


class Case(NamedTuple):
    """Signals a second apart, and what they have to lead to; replies have `max_tokens`."""

    drain_s: int
    max_tokens: int
    signals: Sequence[int]
    exit_code: int
    ends: set[str]


CASES = {
    "SIGTERM with time": Case(600, 400, [signal.SIGTERM], 0, {"length"}),
    "SIGTERM with 3 s": Case(3, 1900, [signal.SIGTERM], 0, {"length", "shutting_down"}),
    "Ctrl-C twice": Case(600, 1900, [signal.SIGINT] * 2, 130, {"length", "shutting_down"}),
}


def ask(url: str, number: int, max_tokens: int) -> str:
    """How a reply ended: its finish reason, or the code of its error."""
    body = {"messages": f"Hi {number}", "max_tokens": max_tokens, "ignore_eos": True,
            "stream": number % 3 > 0}  # fmt: skip
    connection = HTTPConnection(url.removeprefix("http://"), timeout=900)
    connection.request("POST", "/v1/chat/completions", json.dumps(body))
    text = connection.getresponse().read().decode()
    connection.close()
    if not body["stream"]:
        return end_of(json.loads(text))
    *events, done = text.strip().split("\n\n")
    return end_of(json.loads(events[-1].removeprefix("data: "))) if "[DONE]" in done else "cut off"


def end_of(event: Any) -> str:
    return str(event["error"]["code"] if "error" in event else event["choices"][0]["finish_reason"])


def wait_until_busy(url: str) -> None:
    """Until as many replies run as can, and others wait. Raises RuntimeError if they never do."""
    counts: dict[str, float] = {}
    deadline_s = time.monotonic() + BUSY_S
    while (counts.get("running"), counts.get("waiting")) != (AT_ONCE, REQUESTS - AT_ONCE):
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"the server counts {counts} after {BUSY_S} s")
        time.sleep(0.1)
        lines = urlopen(f"{url}/metrics").read().decode().splitlines()
        found = (re.match(r"mrs:num_requests_(\w+){.* (.*)", line) for line in lines)
        counts = {each[1]: float(each[2]) for each in found if each}


def is_right(name: str, case: Case) -> bool:
    flags = ("--drain-timeout", str(case.drain_s), "--speculate", "off")
    with (
        server_process(*flags) as (server, url),
        ThreadPoolExecutor(REQUESTS) as threads,
    ):
        ends = threads.map(lambda n: ask(url, n, case.max_tokens), range(REQUESTS))
        wait_until_busy(url)
        start_s = time.monotonic()
        for number in case.signals:
            server.send_signal(number)
            time.sleep(1)
        found = Counter(ends)
        clients_s = time.monotonic() - start_s
        code, said = server.wait(120), server.stderr.read().splitlines()  # type: ignore[union-attr]
        print(
            f"{name}: {dict(found)}, the last after {clients_s:.1f} s; exit code {code} after "
            f"{time.monotonic() - start_s:.1f} s; {said}"
        )
        return found.keys() <= case.ends and code == case.exit_code


def main() -> int:
    found = [is_right(name, case) for name, case in CASES.items()]
    return 0 if all(found) else 1


if __name__ == "__main__":
    sys.exit(main())
