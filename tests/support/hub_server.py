"""A hub on this machine: listings, files that redirect to a CDN, ranges, tokens, a log."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import final
from urllib.parse import parse_qs, unquote, urlsplit

from support.model_files import header

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LARGE = (".safetensors", ".gguf", ".bin")
#: As much as the hub library receives before it tells of it.
PIECE_BYTES = 10 * 1024**2


@dataclass
class Blob:
    """A file: `head`, then zeros up to its size, so that large models cost nothing."""

    head: bytes
    size_bytes: int

    def part(self, begin: int, end: int) -> bytes:
        head = self.head[begin:end]
        return head + bytes(max(0, min(end, self.size_bytes) - begin - len(head)))

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.part(0, self.size_bytes)).hexdigest()

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.head + str(self.size_bytes).encode()).hexdigest()


def header_blob(shapes: Mapping[str, tuple[int, ...]]) -> Blob:
    """A safetensors file of bf16 zeros."""
    return Blob(*header(shapes))


@dataclass
class Model:
    files: dict[str, Blob]
    commit: str = COMMIT
    token: str | None = None
    is_gated: bool = False
    location: str = ""


@dataclass
class Served:
    """One answered request. `begin` and `end` are the range asked for, if any."""

    place: str
    method: str
    path: str
    status: int
    body_bytes: int
    authorization: str | None
    begin: int | None = None
    end: int | None = None


@final
@dataclass
class HubServer:
    """Two servers: the hub, and the CDN that large files are redirected to.

    `obeys_ranges` False makes both ignore ranges. `trouble` is asked before each request for a
    status to answer instead, or -1 for half a body. `spoils` says in which answers with a whole
    file the last bit is wrong. A changed `signature` lets addresses expire.
    Bodies go out in pieces of `PIECE_BYTES`, `pause_s` apart.
    """

    models: dict[str, Model] = field(default_factory=dict)
    log: list[Served] = field(default_factory=list)
    obeys_ranges: bool = True
    trouble: Callable[[Served], int] = lambda served: 0
    spoils: Callable[[Served], bool] = lambda served: False
    signature: int = 0
    pause_s: float = 0.0

    def add(self, model_id: str, files: dict[str, bytes | Blob], **kwargs: object) -> Model:
        blobs = {n: f if isinstance(f, Blob) else Blob(f, len(f)) for n, f in files.items()}
        self.models[model_id] = Model(blobs, **kwargs)  # type: ignore[arg-type]
        return self.models[model_id]

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.servers['hub'].server_port}"

    @property
    def body_bytes(self) -> int:
        return sum(served.body_bytes for served in self.log)

    def served(self, suffix: str, place: str = "cdn") -> list[Served]:
        return [s for s in self.log if s.place == place and urlsplit(s.path).path.endswith(suffix)]

    def __enter__(self) -> HubServer:
        self.servers = {name: _Server(self, name) for name in ("hub", "cdn")}
        self.threads = [
            threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
            for server in self.servers.values()
        ]
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for server in self.servers.values():
            server.shutdown()
            server.server_close()
        for thread in self.threads:
            thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, hub: HubServer, place: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.hub = hub
        self.place = place

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up is no event."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        served = Served(
            self.server.place, self.command, self.path, 0, 0, self.headers.get("Authorization")
        )
        asked = self.headers.get("Range", "")
        if asked.startswith("bytes="):
            begin, _, end = asked.removeprefix("bytes=").partition("-")
            served.begin, served.end = int(begin), int(end) + 1 if end else None
        trouble = self.server.hub.trouble(served)
        if trouble > 0:
            return self.answer(served, trouble, b"")
        self.cut_short = trouble < 0
        return self.on_cdn(served) if self.server.place == "cdn" else self.on_hub(served)

    def on_hub(self, served: Served) -> None:
        path, query = urlsplit(self.path).path.strip("/"), urlsplit(self.path).query
        parts = [unquote(part) for part in path.split("/")]
        is_api = parts[:2] == ["api", "models"]
        if is_api:
            parts = parts[2:]
        model = self.server.hub.models.get("/".join(parts[:2]))
        if model is None or (model.token and served.authorization != f"Bearer {model.token}"):
            code = "RepoNotFound" if model is None or not model.is_gated else "GatedRepo"
            if not (is_api and code == "GatedRepo"):  # the listing of a gated model is public
                return self.answer(served, 401 if code == "RepoNotFound" else 403, b"", code=code)
            assert model is not None
        verb, revision, name = parts[2], parts[3], "/".join(parts[4:])
        if revision not in ("main", model.commit):
            return self.answer(served, 404, b"", code="RevisionNotFound")
        if is_api and verb == "revision":
            return self.answer(served, 200, listing(parts, model, "blobs" in parse_qs(query)))
        if is_api and verb == "tree":
            return self.answer(served, 200, tree(model))
        if name not in model.files:
            return self.answer(served, 404, b"", code="EntryNotFound")
        blob = model.files[name]
        headers = {"X-Repo-Commit": model.commit, "ETag": f'"{blob.digest}"'}
        if not name.endswith(LARGE):
            return self.file(served, blob, headers)
        hub = self.server.hub
        port = hub.servers["cdn"].server_port
        model_id = "/".join(parts[:2])
        headers["Location"] = f"http://127.0.0.1:{port}/{model_id}/{name}?s={hub.signature}"
        headers["Location"] = model.location or headers["Location"]
        headers["X-Linked-Size"] = str(blob.size_bytes)
        headers["X-Linked-Etag"] = f'"{blob.digest}"'
        return self.answer(served, 302, b"Found. Redirecting to the CDN.", headers)

    def on_cdn(self, served: Served) -> None:
        parts = urlsplit(self.path)
        owner, model, name = unquote(parts.path).strip("/").split("/", 2)
        if parts.query != f"s={self.server.hub.signature}":
            return self.answer(served, 403, b"expired")
        blob = self.server.hub.models[f"{owner}/{model}"].files[name]
        return self.file(served, blob, {"ETag": f'"{blob.digest}"', "Accept-Ranges": "bytes"})

    def file(self, served: Served, blob: Blob, headers: dict[str, str]) -> None:
        begin, end, status = 0, blob.size_bytes, 200
        if served.begin is not None and self.server.hub.obeys_ranges:
            begin, end = served.begin, min(served.end or blob.size_bytes, blob.size_bytes)
            status = 206
            if begin >= blob.size_bytes:
                return self.answer(served, 416, b"")
            headers = headers | {"Content-Range": f"bytes {begin}-{end - 1}/{blob.size_bytes}"}
        body = blob.part(begin, end)
        if status == 200 and self.server.hub.spoils(served):
            body = body[:-1] + bytes([body[-1] ^ 1])
        return self.answer(served, status, body, headers)

    def answer(
        self,
        served: Served,
        status: int,
        body: bytes,
        headers: dict[str, str] | None = None,
        code: str = "",
    ) -> None:
        served.status = status
        self.server.hub.log.append(served)
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if code:
            self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        half = body[: len(body) // 2] if getattr(self, "cut_short", False) else body
        for begin in range(0, len(half), PIECE_BYTES):
            time.sleep(self.server.hub.pause_s if begin else 0)
            self.wfile.write(half[begin : begin + PIECE_BYTES])
        served.body_bytes = len(half)
        if len(half) < len(body):
            self.close_connection = True


def listing(parts: list[str], model: Model, with_sizes: bool) -> bytes:
    siblings = [
        {"rfilename": name} | (_sizes(name, blob) if with_sizes else {})
        for name, blob in model.files.items()
    ]
    model_id = "/".join(parts[:2])
    answer = {"_id": "1", "id": model_id, "modelId": model_id, "sha": model.commit}
    return json.dumps(answer | {"siblings": siblings, "private": False, "tags": []}).encode()


def _sizes(name: str, blob: Blob) -> dict[str, object]:
    """What the hub says of a file; of large files of this server, their hash only if it is cheap
    to compute."""
    is_stored = name.endswith(LARGE) and blob.size_bytes < 64 * 1024**2
    return {"size": blob.size_bytes} | ({"lfs": {"sha256": blob.sha256}} if is_stored else {})


def tree(model: Model) -> bytes:
    return json.dumps(
        [
            {"type": "file", "path": name, "size": blob.size_bytes, "oid": blob.digest[:40]}
            | (
                {"lfs": {"oid": blob.digest, "size": blob.size_bytes, "pointerSize": 130}}
                if name.endswith(LARGE)
                else {}
            )
            for name, blob in model.files.items()
        ]
    ).encode()
