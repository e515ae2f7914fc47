"""How the chat page is served. What it does in a browser: `test_page_in_browser.py`."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
from running_server import DEMO, RunningServer, running

import mrs.server
from mrs.plan.report.document import SCHEMA
from mrs.server.models.slot import ModelSlot
from mrs.server.settings import ServerSettings

KEY = "secret"
PAGE = Path(mrs.server.__file__).with_name("page")
FILES = sorted(path.name for path in PAGE.iterdir() if path.is_file())
VENDOR = PAGE / "vendor"
LIBRARIES = sorted(
    path.relative_to(PAGE).as_posix()
    for path in VENDOR.glob("*/*")
    if path.suffix in (".js", ".mjs")
)


@pytest.fixture(scope="module")
def locked() -> Iterator[RunningServer]:
    with running(ServerSettings(api_keys=(KEY,))) as made:
        yield made


def test_the_page_is_served_with_a_strict_policy(server: RunningServer) -> None:
    for path in ("/", *(f"/page/{name}" for name in (*FILES, *LIBRARIES))):
        reply = server.http.get(path)
        assert reply.status_code == 200
        policy = reply.headers["content-security-policy"]
        assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
        assert policy.endswith("-for 'script'; trusted-types dompurify pdf-worker")
        assert "unsafe" not in policy
        assert reply.headers["x-content-type-options"] == "nosniff"
    assert server.http.get("/").headers["content-type"] == "text/html; charset=utf-8"
    for name in ("page.js", *LIBRARIES):
        script = server.http.get(f"/page/{name}")
        assert script.headers["content-type"] == "text/javascript; charset=utf-8"
        assert script.content == (PAGE / name).read_bytes()


def test_files_are_compressed_for_clients_that_can_read_that(server: RunningServer) -> None:
    (library,) = (name for name in LIBRARIES if "katex" in name)
    sizes = {}
    for encoding in ("gzip, deflate, br", "identity"):
        reply = server.http.get(f"/page/{library}", headers={"accept-encoding": encoding})
        assert reply.content == (PAGE / library).read_bytes()
        sizes[encoding] = int(reply.headers["content-length"])
    assert sizes["gzip, deflate, br"] < sizes["identity"] / 3


def test_browsers_keep_libraries_and_ask_for_the_rest_anew(server: RunningServer) -> None:
    for name in LIBRARIES:
        assert "immutable" in server.http.get(f"/page/{name}").headers["cache-control"]
        assert re.fullmatch(
            r"vendor/[a-z-]+-\d+\.\d+\.\d+/[\w.-]+", name
        )  # a version in each address
    for name in FILES:
        assert server.http.get(f"/page/{name}").headers["cache-control"] == "no-cache"


def test_libraries_are_as_published_and_beside_their_licenses() -> None:
    lines = (VENDOR / "SHA256SUMS").read_text().splitlines()
    recorded = {path.removeprefix("./"): digest for digest, path in map(str.split, lines)}
    files = [path for path in VENDOR.glob("*/*")]
    assert {path.relative_to(VENDOR).as_posix() for path in files} == set(recorded)
    for path in files:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        assert digest == recorded[path.relative_to(VENDOR).as_posix()], path
    for folder in {path.parent for path in files}:
        assert len((folder / "LICENSE").read_text()) > 500
        assert f"`{folder.name}`" in (VENDOR / "README.md").read_text()


def test_the_page_needs_no_key_but_the_plan_does(locked: RunningServer) -> None:
    assert locked.http.get("/").status_code == 200
    assert locked.http.get("/page/page.js").status_code == 200
    assert locked.http.get("/plan").status_code == 401
    assert locked.http.get("/plan", headers={"x-api-key": KEY}).status_code == 200


@pytest.mark.parametrize(
    "name",
    [
        "nothing.js",
        "..%2fguard.py",
        "../guard.py",
        "%2e%2e/x",
        "",
        "vendor",
        "vendor/README.md",
        "vendor/fetch.sh",
        "vendor/%2e%2e/page.js",
        "/etc/passwd",
    ],
)
def test_no_other_file_is_served(server: RunningServer, name: str) -> None:
    assert server.http.get(f"/page/{name}").status_code == 404


@pytest.mark.full
def test_the_plan_of_a_model_is_that_of_the_named_one() -> None:
    slots = [ModelSlot(DEMO, "one"), ModelSlot(replace(DEMO, max_seqs=2), "two")]
    with running(slots=slots) as server:
        assert server.http.get("/plan").json()["model"]["model_id"] == "one"
        reply = server.http.get("/plan", params={"model": "two"})
        assert (reply.status_code, reply.json()["error"]["code"]) == (409, "not_loaded")
        server.chat(model="two")
        document = server.http.get("/plan", params={"model": "two"}).json()
        assert document["model"]["model_id"] == "two"
        assert document["planned"]["batch"] == 2
        assert server.http.get("/plan", params={"model": "three"}).status_code == 404


def test_the_plan_follows_its_schema(server: RunningServer) -> None:
    document = server.http.get("/plan").json()
    jsonschema.validate(document, json.loads(SCHEMA.read_text()))
    assert document["model"]["model_id"] == "demo"
    assert len(document["layers"]) == sum(each["layers"] for each in document["devices"])


@pytest.mark.parametrize("name", FILES)
def test_files_have_no_external_address_and_make_no_markup(name: str) -> None:
    text = (PAGE / name).read_text()
    addresses = set(re.findall(r"(?:https?:|wss?:|[\"'(])//[\w.-]+", text))
    assert addresses <= {"http://www.w3.org"}  # the name of SVG, which nothing fetches
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text)
    assert not re.search(r"<script(?![^>]*src=)|<style|\sstyle=|\son\w+=\"", text)


def test_all_files_that_the_page_names_are_there() -> None:
    texts = [(PAGE / name).read_text() for name in FILES]
    named = {
        name for text in texts for name in re.findall(r"\"(?:page|\.)/([\w./-]+\.\w+)\"", text)
    }
    assert named | {"index.html"} == {*FILES, *LIBRARIES}
