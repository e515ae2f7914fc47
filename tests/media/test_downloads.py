"""Images over HTTP: redirects, slow and endless answers."""

from __future__ import annotations

import io
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import numpy as np
import pytest
from PIL import Image

from mrs.errors import NotReadable
from mrs.media import open_image as opening
from mrs.media.decoded_image import DecodedImage
from mrs.media.read_media import ReadLimits, read_media
from mrs.source import http_client


def open_image(source: str, limits: ReadLimits | None = None) -> DecodedImage:
    return opening.open_image(read_media(source, limits or ReadLimits()))


def png() -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.arange(300, dtype=np.uint8).reshape(10, 10, 3)).save(file, "PNG")
    return file.getvalue()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.headers.get("Authorization"):
            return self.answer(400, b"a token")
        name = self.path.partition("?")[0].strip("/")
        return getattr(self, name.removesuffix(".png"), self.missing)()

    def answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for header, value in {"Content_Length": str(len(body)), **headers}.items():
            self.send_header(header.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def missing(self) -> None:
        self.answer(404, b"none")

    def cat(self) -> None:
        self.answer(200, png())

    def moved(self) -> None:
        self.answer(302, b"", Location="/cat.png")

    def two_lines(self) -> None:
        self.wfile.write(b"HTTP/1.1 none\r of\n these\r\n\r\n")
        self.close_connection = True

    def away(self) -> None:
        self.answer(302, b"", Location=f"http://localhost:{self.server.server_port}/secret.png")

    def secret(self) -> None:
        self.server.secrets.append(self.path)  # type: ignore[attr-defined]
        self.answer(200, png())

    def circle(self) -> None:
        self.answer(302, b"", Location="/circle.png")

    def to_file(self) -> None:
        self.answer(302, b"", Location="file:///etc/hostname")

    def page(self) -> None:
        self.answer(200, b"<html>no picture</html>")

    def cut(self) -> None:
        self.answer(200, png()[:-20], Content_Length=str(len(png())))
        self.close_connection = True

    def endless(self) -> None:
        self.send_response(200)
        self.send_header("Connection", "close")
        self.end_headers()
        while not self.server.stopped.is_set():  # type: ignore[attr-defined]
            self.wfile.write(bytes(65536))

    def dripping(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "100000")
        self.end_headers()
        self.drip(b"x")

    def dripping_header(self) -> None:
        self.wfile.write(b"HTTP/1.1 200 OK\r\nX-A: ")
        self.drip(b"x")

    def drip(self, byte: bytes) -> None:
        while not self.server.stopped.wait(0.02):  # type: ignore[attr-defined]
            self.wfile.write(byte)
            self.wfile.flush()

    def log_message(self, format: str, *args: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    secrets: ClassVar[list[str]] = []
    stopped: threading.Event

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up is no event."""


@pytest.fixture(scope="module")
def address() -> Iterator[Callable[[str], str]]:
    server = _Server(("127.0.0.1", 0), _Handler)
    server.stopped = threading.Event()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            patch.delenv(name, raising=False)
        yield lambda name: f"http://127.0.0.1:{server.server_port}/{name}"
    server.stopped.set()
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize("name", ["cat.png", "moved.png", "cat.png?size=1 é"])
def test_an_image_comes(address: Callable[[str], str], name: str) -> None:
    found = open_image(address(name)).image
    assert np.asarray(found).tobytes() == np.arange(300, dtype=np.uint8).tobytes()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("nothing.png", "the server answers 404"),
        ("circle.png", "more than 10 redirects"),
        ("to_file.png", "an invalid address"),
        ("page.png", "it is not a png, jpg"),
        ("cut.png", "no answer"),
    ],
)
def test_what_does_not_come(address: Callable[[str], str], name: str, reason: str) -> None:
    with pytest.raises(NotReadable, match=reason) as caught:
        open_image(address(name))
    assert str(caught.value).startswith(f"image {address(name)} cannot be read")


def test_a_public_server_sends_nobody_into_the_local_network(
    address: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", "*")
    open_image(address("away.png"))
    assert _Server.secrets.pop() == "/secret.png"
    # Only the first one that is asked for is public: the server before it redirects.
    answers = iter([True])
    monkeypatch.setattr(http_client, "_is_public", lambda _: next(answers, False))
    with pytest.raises(NotReadable, match="redirects into the local network: localhost"):
        open_image(address("away.png"))
    assert not _Server.secrets


@pytest.mark.parametrize(
    ("found", "is_public"),
    [
        ("8.8.8.8", True),
        ("2606:4700:4700::1111", True),
        ("127.0.0.1", False),
        ("10.1.2.3", False),
        ("169.254.169.254", False),
        ("192.168.0.1", False),
        ("::1", False),
        ("fe80::1%eth0", False),
        ("::ffff:127.0.0.1", False),
        ("64:ff9b::7f00:1", False),
        ("64:ff9b::808:808", True),
        ("2002:7f00:1::", False),
        ("224.0.0.1", False),
    ],
)
def test_which_addresses_are_public(found: str, is_public: bool) -> None:
    assert http_client._is_public(found) == is_public


def test_nothing_in_the_local_network_is_connected_to_or_told_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An open port, a closed one, one of a name, a name that leads nowhere."""
    monkeypatch.setenv("no_proxy", "*")
    limits = ReadLimits(only_public=True)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0.3)
        port = listening.getsockname()[1]
        texts = set()
        for place in (f"127.0.0.1:{port}", "127.0.0.1:1", f"localhost:{port}", "none.invalid:1"):
            for scheme in ("http", "https"):
                source = f"{scheme}://{place}/cat.png"
                with pytest.raises(NotReadable) as caught:
                    open_image(source, limits)
                host = place.rpartition(":")[0]
                texts.add(str(caught.value).replace(source, "ADDRESS").replace(host, "HOST"))
        with pytest.raises(TimeoutError):
            listening.accept()
    assert len(texts) == 1, texts
    assert "no public address" in texts.pop()


def test_a_host_is_looked_up_once_and_that_address_is_connected_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A name with a public address at first, and one of this machine afterwards."""
    monkeypatch.setenv("no_proxy", "*")
    look_up, answers, asked = socket.getaddrinfo, iter(["192.0.2.1"]), []

    def changing(host: str, *more: object, **named: object) -> object:
        return look_up(next(answers, "127.0.0.1") if host == "cat.test" else host, *more, **named)

    def connect(address: tuple[str, int], *_: object) -> socket.socket:
        asked.append(address)
        raise ConnectionRefusedError("closed")

    monkeypatch.setattr(socket, "getaddrinfo", changing)
    monkeypatch.setattr(socket, "create_connection", connect)
    monkeypatch.setattr(http_client, "_is_public", lambda address: address == "192.0.2.1")
    with pytest.raises(NotReadable, match=r"no answer from cat\.test"):
        open_image("http://cat.test/cat.png", ReadLimits(only_public=True))
    assert asked == [("192.0.2.1", 80)]


@pytest.mark.full
def test_a_status_of_two_lines_is_one_line(address: Callable[[str], str]) -> None:
    with pytest.raises(NotReadable) as caught:
        open_image(address("two_lines.png"))
    assert "\n" not in str(caught.value)
    assert "\r" not in str(caught.value)


def test_an_endless_answer_is_read_to_the_limit(address: Callable[[str], str]) -> None:
    with pytest.raises(NotReadable, match="more than 1 MiB"):
        open_image(address("endless.png"), ReadLimits(image_bytes=2**20))


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["dripping.png", "dripping_header.png", "endless.png"])
def test_a_download_has_an_end(address: Callable[[str], str], name: str) -> None:
    started = time.monotonic()
    limits = ReadLimits(image_bytes=2**30, download_s=0.5)
    with pytest.raises(NotReadable, match="takes too long"):
        open_image(address(name), limits)
    assert time.monotonic() - started > 0.4


def test_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")
    with pytest.raises(NotReadable, match=r"no answer from 127\.0\.0\.1:1:"):
        open_image("http://127.0.0.1:1/cat.png")
