"""Heads, paths and queries that no client sends."""

from __future__ import annotations

import random

from support.hostile.request import MB, HostileRequest, Maker

_BODY = b'{"messages": "Hi", "max_tokens": 4}'


def _head(lines: bytes) -> bytes:
    return b"POST /v1/chat/completions HTTP/1.1\r\nconnection: close\r\n%s\r\n\r\n" % lines


def _path(chance: random.Random) -> HostileRequest:
    path = chance.choice([
        "/v1/models/" + "a" * 50_000, "/v1/models/%00", "/v1/models/../../etc/passwd",
        "/page/../chat.py",
        "/page/%2e%2e%2f%2e%2e%2fetc%2fpasswd", "/" + "a/" * 20_000, "//", "/%ff",
        "/v1/responses/" + "x" * 9000,
        "/v1/responses/%00/input_items", "/v1//chat/completions", "/metrics", "/plan",
        "/openapi.json", "/docs",
        "/", "*", "http://a/", "/v1/models", "/health", "/%" * 1000, "/page/" + "%2e%2e/" * 100,
        "/\x7f",
    ])  # fmt: skip
    method = chance.choice(
        ["GET", "GET", "GET", "POST", "DELETE", "HEAD", "OPTIONS", "TRACE", "BREW"]
    )
    return HostileRequest(f"head: {method} {path[:30]}", path, method=method)


def _query(chance: random.Random) -> HostileRequest:
    query = chance.choice([
        "a=b&" * 10_000, "limit=" + "9" * 5000, "limit=-1&order=x&after=" + "y" * 1000,
        "=" * 20_000, "%" * 9000,
        "stream=1&" + "%ff" * 3000, "stream=x&include_obfuscation=1&starting_after=-5",
    ])  # fmt: skip
    path = chance.choice(
        ["/v1/responses/LAST-RESPONSE/input_items", "/v1/responses/x", "/v1/models"]
    )
    return HostileRequest(f"head: query {query[:20]}", f"{path}?{query}", method="GET")


def _headers(chance: random.Random) -> HostileRequest:
    headers = chance.choice([
        ("x: " + "a" * 60_000,), ("x: " + "a" * 200_000,), tuple(f"x-{i}: y" for i in range(2000)),
        ("x-request-id: " + "a" * 5000,), ("authorization: Bearer " + "a" * 5000,),
        ("x-request-id: \xff",),
        ("origin: http://evil.example",), ("origin: null",), ("accept-encoding: gzip",),
        ("cookie: " + "a" * 9000,),
        ("expect: 100-continue",), ("upgrade: websocket", "connection: upgrade"),
        ("x-request-timeout: -1",),
        ("transfer-encoding: gzip",), ("forwarded: for=1",), ("range: bytes=0-9999999999",),
        ("te: trailers",),
    ])  # fmt: skip
    name = f"head: {headers[0][:30]}"
    return HostileRequest(name, "/v1/chat/completions", _BODY, headers=headers)


def _host(chance: random.Random) -> HostileRequest:
    host = chance.choice([
        b"evil.example", b"", b"localhost:99999", b"[::1", b"127.0.0.1.nip.io", b"\xff",
        b"a" * 10_000,
        b"localhost@evil", b"0x7f000001",
    ])  # fmt: skip
    lines = b"host: %s\r\ncontent-length: %d" % (host, len(_BODY))
    return HostileRequest("head: host", "", _BODY, head=_head(lines))


def _length(chance: random.Random) -> HostileRequest:
    """Lengths that lie, and bodies in chunks; whoever waits for more is closed by the client."""
    lines, body = chance.choice([
        (b"content-length: -1", _BODY), (b"content-length: 99999999999999999999", _BODY),
        (b"content-length: 1e3", _BODY), (b"content-length: 5\r\ncontent-length: 6", _BODY),
        (b"content-length: 35\r\ntransfer-encoding: chunked", b"0\r\n\r\n"),
        (b"transfer-encoding: chunked", b"ffffffffffffffff\r\n"), (b"transfer-encoding: chunked",
        b"-1\r\n\r\n"),
        (b"transfer-encoding: chunked", b"1\r\n{\r\n" * 20_000 + b"0\r\n\r\n"),
        (b"transfer-encoding: chunked", b"5;" + b"x" * MB + b"\r\nabcde\r\n0\r\n\r\n"),
        (b"transfer-encoding: chunked", b"0\r\n" + b"x: y\r\n" * 20_000 + b"\r\n"),
        (b"transfer-encoding: chunked", b"100000\r\n" + b" " * 2**20 + b"\r\n" + b"0\r\n\r\n"),
    ])  # fmt: skip
    head = (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n%s\r\n\r\n"
    )
    return HostileRequest(f"head: {lines[:40].decode()}", "", body, head=head % lines)


def _large(chance: random.Random) -> HostileRequest:
    """More than a body may have, as its length or as what comes."""
    size = chance.choice([2**30, 60 * MB])
    head = _head(b"host: localhost\r\ncontent-length: %d" % size)
    return HostileRequest(f"head: {size:,} B", "", b" " * min(size, 60 * MB), head=head)


def _no_http(chance: random.Random) -> HostileRequest:
    close = b"host: localhost\r\nconnection: close\r\n\r\n"
    head = chance.choice([
        b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03" + bytes(500), b"GET\r\n\r\n", b"\0" * 1000,
        b"PRI * HTTP/2.0\r\n" + close, b"GET / HTTP/9.9\r\n" + close,
        b"GET / HTTP/1.1\r\n: x\r\n\r\n",
        b"GET / HTTP/1.0\r\n\r\n", b"\r\n" * 10_000 + b"GET / HTTP/1.1\r\n" + close, b"G" * 100_000,
        b"GET / HTTP/1.1\r\n b: c\r\n" + close, b"SSH-2.0-x\r\n\r\n",
        b"GET /\x00 HTTP/1.1\r\n" + close,
        b"GET / HTTP/1.1\nhost: localhost\nconnection: close\n\n", b"POST / HTTP/1.1\r\n" + close,
    ])  # fmt: skip
    return HostileRequest(f"head: {head[:12]!r}", "", head=head)


MAKERS: tuple[Maker, ...] = (
    _path,
    _path,
    _query,
    _headers,
    _headers,
    _host,
    _length,
    _large,
    _no_http,
)
