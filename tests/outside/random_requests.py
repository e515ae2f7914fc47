"""Random requests at once, of which the client cuts a third off: what does the server leave behind?

    python tests/outside/random_requests.py [COUNT] [SEED]

COUNT is 1000 by default. Ends with exit code 0 if every other request is answered, and then no
sequence runs or waits, no block of the KV cache is in use, no file descriptor is left, and a reply
is the same as before.
"""

from __future__ import annotations

import json
import random
import socket
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection

import psutil
from serving import server_process

STREAMS = 12
SETTLE_SECONDS = 120
FIXED = {"messages": "What is a KV cache?", "max_tokens": 16, "temperature": 0}


def request_of(chance: random.Random) -> tuple[str, dict[str, object]]:
    words = "word " * chance.randint(1, 400)
    if chance.random() < 0.1:
        return "/v1/embeddings", {"input": [words, "and another"]}
    body = {
        "max_tokens": chance.randint(1, 60),
        "n": chance.choice([1, 1, 1, 2, 3]),
        "stream": chance.random() < 0.5,
        "temperature": chance.choice([0, 1]),
    }
    if chance.random() < 0.3:
        return "/v1/completions", {**body, "prompt": [words + "a", "b"]}
    if chance.random() < 0.2:
        body["response_format"] = {"type": "json_object"}
    return "/v1/chat/completions", {**body, "messages": f"{chance.random()} {words}"}


def ask(address: tuple[str, int], number: int, seed: int) -> str:
    """The status of the reply; `cut off` for every third request, at any moment of its life."""
    chance = random.Random(f"{seed} {number}")
    path, body = request_of(chance)
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
    sent = f"{head}content-length: {len(content)}\r\n\r\n".encode() + content
    with socket.create_connection(address, timeout=300) as connection:
        if number % 3 == 0:
            is_partial = chance.random() < 0.1
            connection.sendall(sent[: chance.randrange(len(sent))] if is_partial else sent)
            time.sleep(chance.random() ** 3)
            if chance.random() < 0.5:  # a reset, as after the end of a killed process
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1" + bytes(7))
            return "cut off"
        connection.sendall(sent)
        received = b""
        while data := connection.recv(65536):
            received += data
    is_whole = b"[DONE]" in received or not body.get("stream")
    return received[9:12].decode() + ("" if is_whole else " without an end")


def get(address: tuple[str, int], method: str, path: str, body: object = None) -> str:
    connection = HTTPConnection(*address, timeout=300)
    connection.request(method, path, None if body is None else json.dumps(body))
    text = connection.getresponse().read().decode()
    connection.close()
    return text


def in_use(address: tuple[str, int]) -> dict[str, float]:
    """What the server says is in use."""
    lines = get(address, "GET", "/metrics").splitlines()
    names = ("mrs:num_requests_running", "mrs:num_requests_waiting", "mrs:kv_cache_usage_perc")
    values = dict(line.rsplit(" ", 1) for line in lines if line.startswith(names))
    return {name.partition("{")[0]: float(value) for name, value in values.items()}


def main() -> int:
    words = sys.argv[1:]
    count, seed = (int(word) for word in (*words, *("1000", "0")[len(words) :]))
    flags = ("--prefix-cache-n", "0", "--max-queue", "128")
    with server_process(*flags) as (server, url):
        host, _, port = url.removeprefix("http://").rpartition(":")
        address, process = (host, int(port)), psutil.Process(server.pid)

        def reply() -> str:
            return json.loads(get(address, "POST", "/v1/chat/completions", FIXED))["choices"][0]

        expected, before = reply(), process.num_fds()
        with ThreadPoolExecutor(STREAMS) as threads:
            found = Counter(threads.map(lambda n: ask(address, n, seed), range(count)))
        deadline_s = time.monotonic() + SETTLE_SECONDS
        while (left := process.num_fds() - before) > 0 or any(in_use(address).values()):
            if time.monotonic() > deadline_s:
                break
            time.sleep(0.2)
        print(dict(found), in_use(address), f"{left} descriptors more than before")
        is_clean = left <= 0 and not any(in_use(address).values()) and reply() == expected
    return 0 if is_clean and found.keys() <= {"200", "cut off"} else 1


if __name__ == "__main__":
    sys.exit(main())
