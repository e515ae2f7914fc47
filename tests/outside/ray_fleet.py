"""Replicas under Ray: `python tests/outside/ray_fleet.py [CONVERSATIONS]`, where Ray is installed.

Conversations that share system prompts and branch are answered by one server, then by two replicas
under Ray, of which one is killed now and then. Every reply has to be that of the single server.
Printed are the prompt tokens that were cached, of both.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

_PORT = 9351
_CLIENTS = 8
_TURNS = 4
_KILL_S = 20.0
_START_S = 300.0

Message = dict[str, str]


@contextmanager
def serving(*flags: str) -> Iterator[None]:
    words = [sys.executable, "-m", "mrs_cli", "serve", "--port", str(_PORT), "-m", "demo", *flags]
    variables = os.environ | {"RAY_USAGE_STATS_ENABLED": "0"}
    with subprocess.Popen(words, stderr=subprocess.DEVNULL, env=variables) as server:
        try:
            deadline_s = time.monotonic() + _START_S
            while not is_ready():
                if server.poll() is not None or time.monotonic() > deadline_s:
                    raise SystemExit("the server did not start")
                time.sleep(0.5)
            yield
        finally:
            server.send_signal(signal.SIGTERM)


def is_ready() -> bool:
    try:
        return urllib.request.urlopen(f"http://127.0.0.1:{_PORT}/ready", timeout=5).status == 200
    except OSError:
        return False


def ask(messages: list[Message]) -> tuple[str, int, int]:
    """The reply, the tokens of the prompt, and how many of them were cached."""
    body = {"model": "demo", "messages": messages, "max_tokens": 24, "temperature": 0}
    request = urllib.request.Request(
        f"http://127.0.0.1:{_PORT}/v1/chat/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    answer = json.load(urllib.request.urlopen(request, timeout=120))
    usage = answer["usage"]
    cached = usage.get("prompt_tokens_details", {}).get("cached_tokens", 0)
    return answer["choices"][0]["message"]["content"], usage["prompt_tokens"], cached


def conversation(number: int) -> tuple[list[str], int, int]:
    """The replies of a conversation, whose last turn is asked for twice: a branch."""
    rng = random.Random(number)
    system = f"You are assistant {number % 5}. " + "Answer briefly and plainly. " * 20
    messages: list[Message] = [{"role": "system", "content": system}]
    replies, tokens, cached = [], 0, 0
    for turn in range(_TURNS):
        question = f"{rng.choice(['What', 'How', 'Why'])} {rng.randrange(1000)} {turn}?"
        messages = [*messages, {"role": "user", "content": question}]
        for _ in range(2 if turn == _TURNS - 1 else 1):
            reply, num_tokens, num_cached = ask(messages)
            replies.append(reply)
            tokens, cached = tokens + num_tokens, cached + num_cached
        messages = [*messages, {"role": "assistant", "content": reply}]
    return replies, tokens, cached


def all_replies(count: int) -> tuple[list[list[str]], float]:
    """The replies of all conversations, and the share of their prompts that was cached."""
    with ThreadPoolExecutor(_CLIENTS) as pool:
        found = list(pool.map(conversation, range(count)))
    share = sum(cached for *_, cached in found) / sum(tokens for _, tokens, _ in found)
    return [replies for replies, *_ in found], share


def kill_replicas() -> None:
    """Kill one of the replicas' servers now and then, for ever."""
    while True:
        time.sleep(_KILL_S)
        found = subprocess.run(
            ["pgrep", "-f", "mrs_cli serve --port 0"], capture_output=True, text=True, check=False
        )
        if pids := found.stdout.split():
            os.kill(int(random.choice(pids)), signal.SIGKILL)
            print("killed a replica")


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 50
    with serving():
        expected, share = all_replies(count)
    print(f"one server: {share:.1%} cached")
    with serving("--ray", "local", "--replicas", "2"):
        found, share = all_replies(count)
        assert found == expected
        print(f"two replicas: {share:.1%} cached, all {count * (_TURNS + 1)} replies the same")
        threading.Thread(target=kill_replicas, daemon=True).start()
        begin_s = time.monotonic()
        while time.monotonic() - begin_s < 4 * _KILL_S:
            found, share = all_replies(count)
            assert found == expected
        print(f"with replicas killed: {share:.1%} cached, all replies the same")


if __name__ == "__main__":
    main()
