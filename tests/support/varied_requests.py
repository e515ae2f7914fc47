"""Requests of all kinds, many of them costly, and the memory of the server that gets them."""

from __future__ import annotations

import base64
import io
import json
import random
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx
from PIL import Image

PROC = Path("/proc")
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
WORDS = ("a", "king", "of", "the", "old", "town", "went", "down", "to", "river", "and", "rain")


class Request(NamedTuple):
    """A request as it is sent; `stalls` if its answer is not read for a while."""

    path: str
    body: bytes
    stalls: bool = False


def varied_requests(count: int, *, images: bool = False, seed: int = 1) -> Iterator[Request]:
    """`count` requests for the demo's model, or for that with images; the same for each seed."""
    rng = random.Random(seed)
    kinds: list[Callable[[random.Random], Request]] = [
        _talk, _talk, _talk, _long_talk, _stream, _stalled, _logprobs, _choices, _large_text,
        _many_numbers, _nothing, _grammar, _stored, _wide_text, _tokenized,
    ]  # fmt: skip
    if images:
        kinds += [_small_image, _small_image, _large_image, _many_images]
    for _ in range(count):
        yield rng.choice(kinds)(rng)


def send(url: str, request: Request) -> int:
    """The status of the answer; 0 if there was none."""
    try:
        if request.stalls:
            return _send_and_stall(url, request)
        return httpx.post(url + request.path, content=request.body, timeout=120).status_code
    except httpx.HTTPError:
        return 0


def send_all(
    url: str, requests: Iterator[Request], after: Callable[[int], None], at_once: int = 8
) -> dict[int, int]:
    """Send all, `at_once` at a time; `after` is called after each. The number of each status."""
    found: dict[int, int] = {}
    with ThreadPoolExecutor(at_once) as pool:
        for number, status in enumerate(pool.map(lambda each: send(url, each), requests)):
            found[status] = found.get(status, 0) + 1
            after(number)
    return found


def process_tree(pid: int) -> list[int]:
    """The process and all that it has started."""
    found = [pid]
    for each in found:
        for task in PROC.glob(f"{each}/task/*/children"):
            found += map(int, task.read_text().split())
    return found


def resident_bytes(pid: int) -> int:
    """Memory of the process and its children, as the system counts it: shared pages once."""
    total = 0
    for each in process_tree(pid):
        try:
            text = (PROC / str(each) / "smaps_rollup").read_text()
        except OSError:  # it has just ended
            continue
        total += sum(
            1024 * int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")
        )
    return total


def peak_bytes(pid: int) -> int:
    """The most memory that the process itself has had so far."""
    status = (PROC / str(pid) / "status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in status if line.startswith("VmHWM:"))


def _send_and_stall(url: str, request: Request) -> int:
    """Read one piece of the answer, and leave after a second."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    with socket.create_connection((parts.hostname, parts.port or 80), timeout=30) as connection:
        head = f"POST {request.path} HTTP/1.1\r\nhost: {parts.netloc}\r\n"
        head += f"content-type: application/json\r\ncontent-length: {len(request.body)}\r\n\r\n"
        connection.sendall(head.encode() + request.body)
        line = connection.recv(64)
        try:
            connection.settimeout(1)
            connection.recv(0)
        except OSError:
            return 0
    return int(line.split()[1]) if line.startswith(b"HTTP") else 0


def _text(rng: random.Random, words: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(words)) + f" {rng.random()}"


def _chat(rng: random.Random, text: Any, **fields: Any) -> Request:
    tokens = fields.pop("max_tokens", rng.randint(1, 12))
    stalls = fields.pop("stalls", False)
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": tokens, **fields}
    return Request(CHAT, json.dumps(body).encode(), stalls)


def _talk(rng: random.Random) -> Request:
    return _chat(rng, _text(rng, rng.randint(1, 60)))


def _long_talk(rng: random.Random) -> Request:
    return _chat(rng, _text(rng, rng.randint(200, 1000)))


def _stream(rng: random.Random) -> Request:
    return _chat(rng, _text(rng, 20), stream=True)


def _stalled(rng: random.Random) -> Request:
    return _chat(
        rng, _text(rng, 9), stream=True, max_tokens=400, ignore_eos=True, stalls=True,
        logprobs=True, top_logprobs=20,
    )  # fmt: skip


def _logprobs(rng: random.Random) -> Request:
    return _chat(rng, _text(rng, 30), logprobs=True, top_logprobs=20, max_tokens=60)


def _choices(rng: random.Random) -> Request:
    return _chat(rng, _text(rng, 30), n=rng.randint(2, 16), temperature=1.0)


def _large_text(rng: random.Random) -> Request:
    return _chat(rng, rng.choice("a 7\u0301") * rng.randint(10**5, 8 * 10**6))


def _wide_text(rng: random.Random) -> Request:
    return _chat(rng, rng.choice(["\U0001f600", "\u597d"]) + "a" * rng.randint(10**4, 10**7))


def _many_numbers(rng: random.Random) -> Request:
    body = {"prompt": [rng.randint(0, 4000)] * rng.randint(100, 10**6), "max_tokens": 1}
    return Request(COMPLETIONS, json.dumps(body).encode())


def _nothing(rng: random.Random) -> Request:
    unit = rng.choice([b"[]", b"{}", b'{"a":1}', b"[[[]]]", b'"ab"', b"1.5"])
    items = b",".join([unit] * rng.randint(10**3, 10**6))
    return Request(CHAT, b'{"messages":"hi","max_tokens":1,"x":[' + items + b"]}")


def _grammar(rng: random.Random) -> Request:
    pattern = f"(a{{1000}}){{{rng.randint(2, 200)}}}"
    return _chat(rng, "Say a.", grammar={"type": "regex", "value": pattern}, max_tokens=4)


def _stored(rng: random.Random) -> Request:
    body = {"input": _text(rng, rng.randint(5, 500)), "max_output_tokens": 16, "store": True}
    return Request("/v1/responses", json.dumps(body).encode())


def _tokenized(rng: random.Random) -> Request:
    body = {"prompt": _text(rng, rng.randint(10, 10**5))}
    return Request("/tokenize", json.dumps(body).encode())


def _with_images(rng: random.Random, *sources: str) -> Request:
    images = [{"type": "image_url", "image_url": {"url": each}} for each in sources]
    return _chat(rng, [*images, {"type": "text", "text": "What is this?"}])


def _image(rng: random.Random, most_edge: int) -> str:
    size = rng.randint(1, most_edge), rng.randint(1, most_edge)
    kind, mode = rng.choice([("PNG", "RGB"), ("PNG", "RGBA"), ("JPEG", "RGB"), ("WEBP", "RGB")])
    colour = tuple(rng.randint(0, 255) for _ in mode)
    written = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = rng.choice([1, 6])  # upright, or to be turned
    Image.new(mode, size, colour).save(written, kind, exif=exif)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(written.getvalue()).decode()}"


def _small_image(rng: random.Random) -> Request:
    return _with_images(rng, _image(rng, 300))


def _large_image(rng: random.Random) -> Request:
    return _with_images(rng, _image(rng, 6000))


def _many_images(rng: random.Random) -> Request:
    return _with_images(rng, *(_image(rng, 20) for _ in range(rng.randint(2, 40))))
