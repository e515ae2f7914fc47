"""A conversation with a server goes on after its worker was killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import openai
import psutil
import pytest
from test_launch import environment

from support.waiting import until

QUESTIONS = ("What is a KV cache?", "What is device mapping?")


@contextmanager
def serving(*flags: str) -> Iterator[tuple[subprocess.Popen[str], openai.OpenAI, list[str]]]:
    """A server of the demo model: its process, a client, and what it says."""
    command = [sys.executable, "-m", "mrs_cli", "--cpu", *flags, "serve", "-p", "0", "-m", "demo"]
    server = subprocess.Popen(
        command, env=environment(), stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    said: list[str] = []
    try:
        assert server.stderr is not None
        threading.Thread(target=lambda: said.extend(server.stderr or ()), daemon=True).start()
        until(lambda: any("http://" in line for line in said))
        url = re.search(r"http://[^/\s]+", "".join(said))
        assert url is not None
        until(lambda: httpx.get(f"{url[0]}/health").status_code == 200)
        client = openai.OpenAI(base_url=f"{url[0]}/v1", api_key="-", max_retries=0, timeout=120)
        yield server, client, said
    finally:
        server.terminate()
        server.wait(60)


def conversation(client: openai.OpenAI, disturb: Callable[[], None] | None = None) -> list[str]:
    """The answers to two questions; `disturb` is called while the first is written."""
    messages: list[dict[str, str]] = []
    answers = []
    for question in QUESTIONS:
        messages.append({"role": "user", "content": question})
        stream = client.chat.completions.create(
            model="demo",
            messages=messages,  # type: ignore[arg-type]
            temperature=0,
            max_tokens=60,
            stream=True,
        )
        text = ""
        for number, chunk in enumerate(stream):
            text += chunk.choices[0].delta.content or "" if chunk.choices else ""
            if number == 3 and disturb is not None and not answers:
                disturb()
        messages.append({"role": "assistant", "content": text})
        answers.append(text)
    return answers


def workers_of(pid: int) -> list[int]:
    return [each.pid for each in psutil.Process(pid).children() if "worker" in each.cmdline()]


@pytest.mark.slow
def test_answers_are_the_same_when_the_worker_is_killed() -> None:
    with serving("--workers", "1", "--rejoin-limit", "240") as (server, client, said):
        expected = conversation(client)
        assert "KV cache" in expected[0]
        (victim,) = workers_of(server.pid)
        assert conversation(client, lambda: os.kill(victim, signal.SIGKILL)) == expected
        (other,) = workers_of(server.pid)
        assert other != victim
        assert any("has ended" in line and "waiting up to 240 s" in line for line in said)
    until(lambda: not Path(f"/proc/{other}").exists(), 20)
