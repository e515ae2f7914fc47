"""The chat page: how it is served, and what it does in a browser."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from browser import Browser, browsing, find_chromium
from running_server import RunningServer, running

import mrs.server
from mrs.plan.report.document import SCHEMA
from mrs.request import ModelSource, VisionRequest
from mrs.server.settings import ServerSettings

KEY = "secret"
PAGE = Path(mrs.server.__file__).with_name("page")
IMAGES = Path(__file__).parents[1] / "pictures"
FILES = sorted(path.name for path in PAGE.iterdir())
REPLY = "document.querySelector('.reply[aria-busy=false]')"
TEXT = "document.querySelector('.reply > .markdown').textContent"
#: Keeps the body of the last request in `sent`, and lets replies go on to their most tokens.
WATCH = """
(() => { const real = fetch; fetch = (path, options) => {
  if (options?.body) {
    sent = JSON.parse(options.body);
    options.body = JSON.stringify({...sent, ignore_eos: true});
  }
  return real(path, options);
}; sent = null; })()
"""


@pytest.fixture(scope="module")
def locked() -> Iterator[RunningServer]:
    with running(ServerSettings(api_keys=(KEY,))) as made:
        yield made


@pytest.fixture(scope="module")
def viewer() -> Iterator[RunningServer]:
    source = ModelSource("demo-vision", "safetensors")
    with running(source=source, vision=VisionRequest()) as made:
        yield made


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browsing(find_chromium(), tmp_path_factory.mktemp("browser")) as made:
        yield made


@pytest.fixture
def page(browser: Browser, server: RunningServer) -> Iterator[Browser]:
    """The page of the shared server; at the end, nothing has broken its policy."""
    browser.problems.clear()
    browser.show(900, 640)
    browser.open(f"{server.url}/", "document.title === 'demo'")
    browser.run("localStorage.clear()")
    browser.open(f"{server.url}/", "document.title === 'demo'")
    yield browser
    assert browser.problems == []


def ask(page: Browser, text: str) -> None:
    page.type(text)
    page.press("Enter")
    page.until(REPLY)


def markdown(page: Browser, text: str) -> Any:
    """The markup that the page makes of a reply."""
    return page.run(
        "import('./page/markdown.js').then(({showMarkdown}) => {"
        "  const box = document.createElement('div');"
        f" showMarkdown(box, {json.dumps(text)}); return box.innerHTML; }})"
    )


def test_the_page_is_served_with_a_strict_policy(server: RunningServer) -> None:
    for path in ("/", *(f"/page/{name}" for name in FILES)):
        reply = server.http.get(path)
        assert reply.status_code == 200
        policy = reply.headers["content-security-policy"]
        assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
        assert "unsafe" not in policy
        assert reply.headers["x-content-type-options"] == "nosniff"
    assert server.http.get("/").headers["content-type"] == "text/html; charset=utf-8"
    script = server.http.get("/page/page.js")
    assert script.headers["content-type"] == "text/javascript; charset=utf-8"


def test_the_page_needs_no_key_but_the_plan_does(locked: RunningServer) -> None:
    assert locked.http.get("/").status_code == 200
    assert locked.http.get("/page/page.js").status_code == 200
    assert locked.http.get("/plan").status_code == 401
    assert locked.http.get("/plan", headers={"x-api-key": KEY}).status_code == 200


@pytest.mark.parametrize("name", ["nothing.js", "..%2fguard.py", "../guard.py", "%2e%2e/x", ""])
def test_no_other_file_is_served(server: RunningServer, name: str) -> None:
    assert server.http.get(f"/page/{name}").status_code == 404


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
    named = {found for text in texts for found in re.findall(r"\"(?:page|\.)/([\w.]+)\"", text)}
    assert named | {"index.html"} == set(FILES)


def test_enter_sends_and_shift_enter_does_not(page: Browser, server: RunningServer) -> None:
    page.type("What is a")
    page.press("Enter", shift=True)
    page.type("KV cache?")
    assert page.run("document.querySelectorAll('article').length") == 0
    page.press("Enter")
    page.until(REPLY)
    assert page.run("document.querySelector('.user p').textContent") == "What is a\nKV cache?"
    reply = server.chat(messages="What is a\nKV cache?", max_tokens=...).json()
    content = reply["choices"][0]["message"]["content"]
    assert page.run(TEXT).split() == content.replace("**", "").split()
    note = page.run("document.querySelector('.note').textContent")
    assert re.match(rf"{reply['usage']['completion_tokens']} tokens · [\d.]+ tokens/s · pl", note)
    assert page.run("document.activeElement.id") == "prompt"
    assert page.run("document.querySelector('#prompt').value") == ""


def test_the_conversation_is_sent_with_the_settings(page: Browser, server: RunningServer) -> None:
    page.run("document.querySelector('#show-settings').click()")
    for name, value in {"system": "Be short.", "temperature": "0.5", "max_tokens": "3"}.items():
        page.run(f"document.querySelector('[name={name}]').focus()")
        page.type(value)
    page.press("Escape")
    page.until("!document.querySelector('dialog[open]')")
    page.open(f"{server.url}/", "document.title === 'demo'")  # the browser remembers them
    page.run(WATCH)
    page.run("document.querySelector('#prompt').focus()")
    ask(page, "One")
    page.type("Two")
    page.press("Enter")
    page.until("document.querySelectorAll('.reply[aria-busy=false]').length === 2")
    sent = page.run("sent")
    assert [each["role"] for each in sent["messages"]] == ["system", "user", "assistant", "user"]
    assert sent["messages"][0]["content"] == "Be short."
    assert (sent["temperature"], sent["max_tokens"]) == (0.5, 3)
    assert "cut off" in page.run("document.querySelector('.note').textContent")


def test_escape_stops_a_reply(page: Browser, server: RunningServer) -> None:
    page.run(WATCH)
    page.type("What is a KV cache?")
    page.press("Enter")
    page.until("document.querySelector('.reply > .markdown').textContent")
    page.press("Escape")
    page.until(REPLY)
    server.wait_until_idle()
    assert page.run("document.querySelector('.note').textContent").startswith("stopped")
    assert page.run("document.querySelector('#stop').hidden")
    page.run("document.querySelector('.tools button:last-child').click()")
    page.until("document.querySelector('.reply[aria-busy=true] > .markdown').textContent")
    page.run("document.querySelector('#new').click()")
    page.until("!document.querySelector('#send').hidden")
    server.wait_until_idle()
    assert page.run("document.querySelectorAll('article').length") == 0


def test_thoughts_are_folded(page: Browser) -> None:
    events = [{"reasoning_content": "Let me **see**."}, {"content": "Done."}]
    chunks = [{"choices": [{"index": 0, "delta": each}]} for each in events]
    body = "".join(f"data: {line}\n\n" for line in [*map(json.dumps, chunks), "[DONE]"])
    page.run(f"fetch = async () => new Response({json.dumps(body)}); 0")
    ask(page, "Hi")
    assert page.run(TEXT) == "Done."
    folded = "document.querySelector('.thoughts')"
    assert not page.run(f"{folded}.hidden || {folded}.open")
    assert page.run(f"{folded}.querySelector('strong').textContent") == "see"


def test_an_error_in_a_stream_is_shown(page: Browser) -> None:
    body = 'data: {"error": {"message": "the server was stopped"}}\n\n'
    page.run(f"fetch = async () => new Response({json.dumps(body)}); 0")
    ask(page, "Hi")
    assert page.run("document.querySelector('[role=alert]').textContent") == (
        "the server was stopped"
    )


def test_replies_cannot_add_markup(page: Browser) -> None:
    hostile = (
        "<img src=x onerror=alert(1)> <script>alert(1)</script>\n\n[a](javascript:alert(1))\n\n"
        "![b](https://evil.example/x.png)\n\n```<b>\n</code><script>\n```\n\n|<i>|b|\n|-|-|\n|<u>|c|"
    )
    made = markdown(page, hostile)
    assert not re.search(r"<(script|img|b|i|u)\b|href=.javascript", made)
    assert 'href="https://evil.example/x.png" target="_blank" rel="noopener noreferrer"' in made


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("# A *b*", "<h3>A <em>b</em></h3>"),
        (
            "a **b** ~~c~~ `d*e*` 2 * 3 * 4 x_y_z",
            "<strong>b</strong> <del>c</del> <code>d*e*</code>",
        ),
        ("2 * 3 * 4 x_y_z \\*a\\*", "<p>2 * 3 * 4 x_y_z *a*</p>"),
        ("1. a\n2. b\n   - c", '<ol start="1"><li>a</li><li>b<ul><li>c</li></ul></li></ol>'),
        ("> a\n> - b", "<blockquote><p>a</p><ul><li>b</li></ul></blockquote>"),
        ("|a|b|\n|-|-:|\n|1|2|", '<td>1</td><td class="right">2</td>'),
        ("---", "<hr>"),
        ("```c\nint a;\n\nb", "<code>int a;\n\nb</code>"),  # not closed yet
        ("[`f`](https://a.example/b_(c))", '<a href="https://a.example/b_(c)"'),
        ("see https://a.example/b_c.", '<a href="https://a.example/b_c"'),
    ],
)
def test_markdown(page: Browser, text: str, wanted: str) -> None:
    assert wanted in markdown(page, text)


@pytest.mark.parametrize(
    "text", ["> ", "- ", "**a ", "[", "`a ``", "_*a", "![a](", "|", "\\(", "<"]
)
def test_replies_that_never_end_cost_little(page: Browser, text: str) -> None:
    long = json.dumps(text * (50_000 // len(text)))
    took_ms = page.run(
        "import('./page/markdown.js').then(({showMarkdown}) => {"
        "  const box = document.createElement('div'), start = performance.now();"
        f" showMarkdown(box, {long}); return performance.now() - start; }})"
    )
    assert took_ms < 3000


def test_a_key_is_asked_for_only_if_the_server_wants_one(
    page: Browser, locked: RunningServer
) -> None:
    assert page.run("document.querySelector('#key-form').hidden")
    page.open(f"{locked.url}/", "!document.querySelector('#key-form').hidden")
    page.run("document.querySelector('#key').focus()")
    page.type("wrong")
    page.press("Enter")
    page.until("document.querySelector('#error').textContent.includes('key is wrong')")
    page.run("document.querySelector('#key').select()")
    page.type(KEY)
    page.press("Enter")
    page.until("document.title === 'demo' && document.querySelector('#key-form').hidden")
    ask(page, "Hi")
    assert page.run(TEXT)
    page.problems[:] = [each for each in page.problems if "status of 401" not in each]


def test_images_are_dropped_and_sent(page: Browser, viewer: RunningServer) -> None:
    page.open(f"{viewer.url}/", "!document.querySelector('#attach').hidden")
    page.run(WATCH)
    files = [
        (IMAGES / f"{name}.png").read_bytes() for name in ("three_red_circles", "one_blue_star")
    ]
    page.drop_images(files)
    page.run("document.querySelectorAll('#images button')[1].click()")
    page.run("document.querySelector('[name=max_tokens]').value = 12")
    page.run("document.querySelector('#prompt').focus()")
    ask(page, "What is this?")
    assert "red" in page.run(TEXT)
    image, text = page.run("sent.messages[0].content")
    base64_text = base64.b64encode(files[0]).decode()
    assert image["image_url"]["url"] == f"data:image/png;base64,{base64_text}"
    assert text["text"] == "What is this?"
    assert page.run("document.querySelectorAll('#images li').length") == 0


def test_the_plan_is_drawn(page: Browser, server: RunningServer) -> None:
    page.run("document.querySelector('#show-plan').click()")
    page.until("document.querySelector('#plan[open] svg')")
    layers = len(server.model.plan.layer_devices)
    assert page.run("document.querySelectorAll('#plan section:last-child rect').length") == layers
    assert "4 sequences of 2,048 tokens" in page.run("document.querySelector('#plan').innerText")
    assert "weights 4.39 MiB" in page.run("document.querySelector('#plan').innerText")


def test_every_control_has_a_name_and_nothing_is_wider_than_the_window(page: Browser) -> None:
    page.run("document.querySelector('#key-form').hidden = false")
    ask(page, "What is a KV cache?")
    page.show(320, 480)
    assert page.run("document.documentElement.scrollWidth <= innerWidth")
    roles = ("button", "textbox", "spinbutton", "combobox", "dialog", "article", "log")
    for dialog in (None, "settings", "plan"):
        if dialog is not None:
            page.run(f"document.querySelector('#show-{dialog}').click()")
            page.until("document.querySelector('dialog[open]')")
        page.call("Accessibility.enable")
        nodes = page.call("Accessibility.getFullAXTree")["nodes"]
        found = [each for each in nodes if each.get("role", {}).get("value") in roles]
        assert found
        assert [each for each in found if not each["name"]["value"]] == []
        if dialog is not None:
            page.press("Escape")
            page.until("!document.querySelector('dialog[open]')")
