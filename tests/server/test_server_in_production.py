"""TLS, Unix sockets, proxies and load balancers: what stands around a server in production."""

from __future__ import annotations

import contextlib
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from running_server import CHAT, RunningServer, running, until
from test_server_command import run

from mrs.errors import ExitCode, UsageError
from mrs.server.http.listener import bind_unix, tls_context
from mrs.server.settings import ServerSettings
from support.waiting import PATIENCE_S

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")


def certificate(folder: Path) -> tuple[Path, Path]:
    """The files of a new certificate for this machine, and of its key."""
    files = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt"]
    command += ["ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    command += ["-out", str(files[0]), "-keyout", str(files[1])]
    subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE_S)
    return files


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def secure(files: tuple[Path, Path]) -> Iterator[RunningServer]:
    settings = ServerSettings(
        tls_cert=files[0], tls_key=files[1], max_connections=24, max_body_bytes=2**20
    )
    with running(settings) as made:
        yield made


@needs_openssl
def test_replies_and_streams_come_over_tls(secure: RunningServer) -> None:
    assert secure.url.startswith("https://")
    assert secure.chat().status_code == 200
    body = {"messages": "Hi", "max_tokens": 3, "stream": True}
    assert secure.http.post("/v1/chat/completions", json=body).text.endswith("[DONE]\n\n")
    assert secure.http.get("/page/page.js").status_code == 200
    with pytest.raises(httpx.ConnectError, match="certificate verify failed"):
        httpx.get(f"{secure.url}/health")
    with pytest.raises(httpx.RemoteProtocolError):
        httpx.get(secure.url.replace("https", "http"))
    too_long = secure.http.post("/v1/completions", content=b"a" * 2**21)
    assert too_long.status_code == 413


@needs_openssl
def test_a_connection_ends_after_an_answer_that_came_before_the_body(
    secure: RunningServer, files: tuple[Path, Path]
) -> None:
    host, port = secure.url.removeprefix("https://").split(":")
    trusted = ssl.create_default_context(cafile=files[0])
    with socket.create_connection((host, int(port)), timeout=20) as plain:
        client = trusted.wrap_socket(plain, server_hostname="localhost")
        head = f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {2**21}\r\n\r\n"
        client.sendall(head.encode())
        answer = client.recv(2**16)
        assert answer.startswith(b"HTTP/1.1 413")
        with contextlib.suppress(ConnectionResetError, ssl.SSLEOFError):
            while client.recv(2**16):
                pass


@needs_openssl
def test_silent_handshakes_keep_nobody_out(secure: RunningServer) -> None:
    host, _, port = secure.url.removeprefix("https://").rpartition(":")
    silent = [socket.create_connection((host, int(port))) for _ in range(12)]
    try:
        with secure.new_client() as client:
            assert client.get("/health").status_code == 200
    finally:
        for each in silent:
            each.close()


@needs_openssl
def test_files_that_are_no_pair_are_refused_before_the_model_is_loaded(
    files: tuple[Path, Path], tmp_path: Path
) -> None:
    _, other_key = certificate(tmp_path)
    serve = ("serve", "-p", "0", "-m", "demo")
    for words, said in (
        (("--tls-cert", str(files[0]), "--tls-key", str(other_key)), "key values mismatch"),
        (("--tls-cert", str(files[0])), "cannot be used for TLS"),
        (("--tls-cert", "/none"), "/none cannot be read"),
        (("--tls-key", str(files[1])), "--tls-key needs its certificate"),
    ):
        code, text = run(*serve, *words)
        assert code == ExitCode.USAGE
        assert said in text
        assert text.count("\n") == 1
    both = tmp_path / "both.pem"
    both.write_bytes(files[0].read_bytes() + files[1].read_bytes())
    assert tls_context(both, None).minimum_version == ssl.TLSVersion.TLSv1_2
    locked = tmp_path / "locked.pem"
    lock = ["openssl", "ec", "-aes128", "-passout", "pass:secret"]
    lock += ["-in", str(files[1]), "-out", str(locked)]
    subprocess.run(lock, check=True, capture_output=True, timeout=PATIENCE_S)
    with pytest.raises(UsageError, match="without a password"):
        tls_context(files[0], locked)


def test_a_unix_socket_answers_and_replaces_one_that_was_left_behind(tmp_path: Path) -> None:
    path = tmp_path / "mrs.sock"
    bind_unix(path).close()
    assert path.is_socket()
    with running(uds=path) as made:
        assert path.stat().st_mode & 0o777 == 0o660
        assert made.chat().status_code == 200
        with pytest.raises(UsageError, match="another program uses it"):
            bind_unix(path)
    other = tmp_path / "file"
    other.write_text("kept")
    with pytest.raises(UsageError, match="cannot listen on"):
        bind_unix(other)
    assert other.read_text() == "kept"


def test_a_unix_socket_is_no_port() -> None:
    assert "--uds is no port" in run("serve", "--uds", "/tmp/a", "-p", "0", "-m", "demo")[1]


def test_a_proxy_may_leave_the_root_path_or_cut_it() -> None:
    with running(ServerSettings(root_path="/ai/mrs")) as made:
        for path in ("/v1/models", "/ai/mrs/v1/models", "/ai/mrs/models/", "/ai/mrs/page/page.js"):
            assert made.http.get(path).status_code == 200, path
        page = made.http.get("/ai/mrs/").text
        assert 'src="page/page.js"' in page
        redirect = made.http.get("/ai/mrs")
        assert (redirect.status_code, redirect.headers["location"]) == (307, "/ai/mrs/")
        assert made.http.get("/ai/mrsv1/models").status_code == 404
    for path in ("mrs", "/a b", "/a//b"):
        words = ("serve", "--root-path", path, "-p", "0", "-m", "demo")
        assert f"--root-path {path} is no path" in run(*words)[1]


@pytest.mark.parametrize(
    ("trusted", "given", "client"),
    [
        ((), "9.9.9.9", "127.0.0.1"),
        (("10.0.0.0/8",), "9.9.9.9", "127.0.0.1"),
        (("127.0.0.0/8",), "9.9.9.9", "9.9.9.9"),
        (("127.0.0.1", "10.0.0.1"), "8.8.8.8, 9.9.9.9, 10.0.0.1", "9.9.9.9"),
    ],
)
def test_only_named_proxies_say_who_asks(
    trusted: tuple[str, ...], given: str, client: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(ServerSettings(trusted_proxies=trusted)) as made:
        bodies, seen = made.server.service.bodies, []
        begin = bodies.begin
        monkeypatch.setattr(bodies, "begin", lambda who: (seen.append(who), begin(who))[1])
        assert made.http.get("/health", headers={"x-forwarded-for": given}).status_code == 200
        assert [who[1] for who in seen] == [client]


def test_the_proxy_of_a_socket_is_believed_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ServerSettings(trusted_proxies=("unix",))
    with running(settings, uds=tmp_path / "mrs.sock") as made:
        bodies, seen = made.server.service.bodies, []
        begin = bodies.begin
        monkeypatch.setattr(bodies, "begin", lambda who: (seen.append(who), begin(who))[1])
        made.http.get("/health", headers={"x-forwarded-for": "9.9.9.9"})
        assert [who[1] for who in seen] == ["9.9.9.9"]


@pytest.mark.parametrize("address", ["*", "unix", "localhost", "10.0.0.1/8"])
def test_what_names_no_proxy_is_refused(address: str) -> None:
    code, text = run("serve", "-p", "0", "--trusted-proxy", address, "-m", "demo")
    assert code == ExitCode.USAGE
    assert f"--trusted-proxy {address} is no address" in text


def test_who_comes_through_a_proxy_may_not_change_models() -> None:
    with running(ServerSettings(trusted_proxies=("127.0.0.1",))) as made:
        assert made.http.post("/v1/models/unload", json={"model": "demo"}).status_code == 403


def test_a_load_balancer_learns_of_the_end_before_requests_are_refused() -> None:
    with running(ServerSettings(drain_grace_s=1.0)) as made:
        made.server.stop()
        start_s = time.monotonic()
        until(lambda: made.http.get("/ready").status_code == 503)
        assert made.http.get("/ready").json()["error"]["code"] == "shutting_down"
        assert made.http.get("/health").status_code == 200
        assert made.chat().status_code == 200
        assert "stopping in 1 s: /ready says so" in made.said[0]
        until(lambda: not _answers(made))
        assert time.monotonic() - start_s > 0.9


def _answers(made: RunningServer) -> bool:
    try:
        with made.new_client() as client:
            return client.get("/health").status_code == 200
    except httpx.TransportError:
        return False
