"""The chat page: how it is served, and what it does in a browser."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from browser import Browser, browsing, find_chromium
from running_server import DEMO, RunningServer, running

import mrs.server
from mrs.plan.report.document import SCHEMA
from mrs.request import ModelSource, VisionRequest
from mrs.server.models.slot import ModelSlot
from mrs.server.settings import ServerSettings

KEY = "secret"
PAGE = Path(mrs.server.__file__).with_name("page")
IMAGES = Path(__file__).parents[1] / "pictures"
FILES = sorted(path.name for path in PAGE.iterdir() if path.is_file())
VENDOR = PAGE / "vendor"
LIBRARIES = sorted(
    path.relative_to(PAGE).as_posix()
    for path in VENDOR.glob("*/*")
    if path.suffix in (".js", ".mjs")
)
REPLY = "document.querySelector('.reply[aria-busy=false]')"
TEXT = "document.querySelector('.reply > .markdown').textContent"
#: The page knows that the model reads images.
SEES = "document.querySelector('#drop-hint').textContent.includes('images')"
#: Forgets all that the browser keeps of the page.
FORGET = """
new Promise((resolve) => {
  localStorage.clear();
  sessionStorage.clear();
  indexedDB.deleteDatabase('mrs').onsuccess = resolve;
}).then(() => 0)
"""
EARLIER = "\u2039"  # on the button that shows the version before
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
    browser.run(FORGET)
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
    for path in ("/", *(f"/page/{name}" for name in (*FILES, *LIBRARIES))):
        reply = server.http.get(path)
        assert reply.status_code == 200
        policy = reply.headers["content-security-policy"]
        assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
        assert "require-trusted-types-for 'script'; trusted-types dompurify" in policy
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
    page.run("document.querySelector('.reply .tools button:last-child').click()")
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
        "![b](https://evil.example/x.png)\n\n```<b>\n</code><script>\n```\n\n|<i>|b|\n|-|-|\n|<u>|c|\n\n"
        "$$\\href{javascript:alert(1)}{x}$$ $\\includegraphics{https://evil.example/y.png}$\n\n"
        "$\\htmlStyle{color:red}{x}\\htmlId{prompt}{x}$ <a href='https://evil.example'>x</a>\n\n"
        '![c" onerror="alert(1)](https://evil.example/"onerror=alert(1)) '
        "![d](data:image/png;base64,AA)"
    )
    made = markdown(page, hostile)
    assert not re.search(
        r"<(script|img|b|i|u|style)\b|href=.javascript|<[^>]* (on\w+|style|id)=", made
    )
    address = 'href="https://evil.example/x.png"'
    assert re.search(rf"<a [^>]*{address}", made)
    links = re.findall(r"<a [^>]*>", made)
    assert links
    assert all('target="_blank"' in link and 'rel="noopener noreferrer"' in link for link in links)


def test_the_filter_alone_stops_markup(page: Browser) -> None:
    """Even if the parser let HTML through."""
    made = page.run(
        "import('./page/markdown.js').then(({clean}) => {"
        "  const box = document.createElement('div');"
        "  box.append(clean('<img src=x onerror=alert(1)><svg><script>1</script></svg><form><input>"
        '</form><a href="javascript:alert(1)" id=prompt style="color:red">a</a><math><mtext>'
        "<style><img src=x></style></mtext></math><iframe src=/></iframe>'));"
        " return box.innerHTML; })"
    )
    assert not re.search(
        r"<(script|img|svg|form|input|style|iframe)|javascript|(on\w+|id|style)=", made
    )
    assert ">a</a>" in made
    page.problems[:] = [each for each in page.problems if "inline style" not in each]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("# A *b*", "<h3>A <em>b</em></h3>"),
        ("a **b** ~~c~~ `d*e*`", "<strong>b</strong> <s>c</s> <code>d*e*</code>"),
        ("2 * 3 * 4 x_y_z \\*a\\*", "<p>2 * 3 * 4 x_y_z *a*</p>"),
        ("***a***", "<p><em><strong>a</strong></em></p>"),
        ("a\nb", "<p>a<br>b</p>"),
        ("- a\n\n# b\nc", "<ul><li>a</li></ul><h3>b</h3><p>c</p>"),
        ("C# and F# are#not # headers", "<p>C# and F# are#not # headers</p>"),
        ("a#b\n#c", "<p>a#b<br>#c</p>"),
        ("1. a\n2. b\n   - c", "<ol><li>a</li><li>b<ul><li>c</li></ul></li></ol>"),
        ("> a\n> - b", "<blockquote><p>a</p><ul><li>b</li></ul></blockquote>"),
        ("|a|b|\n|-|-:|\n|1|2|", '<td>1</td><td class="right">2</td>'),
        ("|a|b|\n|-|-|\n|`x\\|y`|2|", "<td><code>x|y</code></td><td>2</td>"),
        ("---", "<hr>"),
        ("```c\nreturn;\n\nb", '<code><span class="hljs-keyword">return</span>;b</code>'),
        ("```nolanguage\na < b\n```", "<code>a &lt; b</code>"),
        ("[`f`](https://a.example/b_(c))", 'href="https://a.example/b_(c)"'),
        ("see https://a.example/b_c.", 'href="https://a.example/b_c"'),
        ("readme.md and [a](b.html)", "<p>readme.md and [a](b.html)</p>"),
        ("- [x] a\n- [ ] b", 'aria-label="Done:">☑</span> a</li>'),
        ("- [x] a\n- [ ] b", 'aria-label="To do:">☐</span> b</li>'),
        ("- [x](https://a.example) a", '<li><a href="https://a.example"'),
        ("it is \\(x^2\\) now", "<msup><mi>x</mi><mn>2</mn></msup>"),
        ("it is $x^2$ now", "<msup><mi>x</mi><mn>2</mn></msup>"),
        ("\\[\na\n- b\n\\]", 'display="block"'),
        ("so $$a$$ so", 'display="block"'),
        ("1. b\n   $$\n   a\n   $$", 'display="block"'),
        ("$\\mathbb{R}^n \\mathcal{Lg}$", '<mi mathvariant="double-struck">\u211d</mi>'),
        ("costs $5 and $6, or \\$7", "<p>costs $5 and $6, or $7</p>"),
        ("`$a$` and `\\(b\\)`", "<code>$a$</code> and <code>\\(b\\)</code>"),
        ("$\\frac{1}{$ x", "<code>\\frac{1}{</code>"),
        ("\\[ not closed", "<p>[ not closed</p>"),
    ],
)
def test_markdown(page: Browser, text: str, wanted: str) -> None:
    assert wanted in markdown(page, text).replace("\n", "")


def test_blocks_that_do_not_change_stay_as_they_are(page: Browser) -> None:
    kept = page.run(
        "import('./page/markdown.js').then(({showMarkdown}) => {"
        "  const box = document.createElement('div');"
        "  showMarkdown(box, 'a\\n\\n- b'); const [first, second] = box.children;"
        "  showMarkdown(box, 'a\\n\\n- b c\\n\\nd');"
        "  const isSame = [first === box.children[0], second === box.children[1]];"
        "  return [...isSame, box.childNodes.length]; })"
    )
    assert kept == [True, False, 3]


@pytest.mark.parametrize(
    "text",
    [
        "> ",
        "- ",
        "**a ",
        "[",
        "`a ``",
        "_*a",
        "![a](",
        "|",
        "\\(",
        "<",
        "$a ",
        "$$\na\n",
        "\\[",
        "{",
    ],
)
def test_replies_that_never_end_cost_little(page: Browser, text: str) -> None:
    long = json.dumps(text * (50_000 // len(text)))
    page.call("Performance.enable", timeDomain="threadTicks")
    before_s = processor_s(page)
    page.run(
        "import('./page/markdown.js').then(({showMarkdown}) => {"
        f" showMarkdown(document.createElement('div'), {long}); }})"
    )
    assert processor_s(page) - before_s < 10


def processor_s(page: Browser) -> float:
    metrics = page.call("Performance.getMetrics")["metrics"]
    return next(each["value"] for each in metrics if each["name"] == "TaskDuration")


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
    page.open(f"{viewer.url}/", SEES)
    page.run(WATCH)
    files = [
        (IMAGES / f"{name}.png").read_bytes() for name in ("three_red_circles", "one_blue_star")
    ]
    page.drop_images(files)
    page.run("document.querySelectorAll('#attachments button')[1].click()")
    page.run("document.querySelector('[name=max_tokens]').value = 12")
    page.run("document.querySelector('#prompt').focus()")
    ask(page, "What is this?")
    assert "red" in page.run(TEXT)
    image, text = page.run("sent.messages[0].content")
    base64_text = base64.b64encode(files[0]).decode()
    assert image["image_url"]["url"] == f"data:image/png;base64,{base64_text}"
    assert text["text"] == "What is this?"
    assert page.run("document.querySelectorAll('#attachments li').length") == 0


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
    roles = (
        "button",
        "textbox",
        "searchbox",
        "checkbox",
        "spinbutton",
        "combobox",
        "dialog",
        "article",
        "log",
    )
    for dialog in (None, "settings", "plan", "chats"):
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


def reply_with(page: Browser, *events: dict[str, Any], ends: bool = True) -> None:
    """Let requests of replies get these chunks from now on, and `sent` be the last request.

    Without `ends` the connection breaks after them, and there is no other one.
    """
    chunks = [{"choices": [{"index": 0, "delta": each}]} for each in events]
    body = [f"data: {line}\n\n" for line in map(json.dumps, chunks)]
    end = "stream.enqueue(bytes('data: [DONE]\\n\\n')); stream.close()"
    text = "".join(each.get("content", "") for each in events).strip()
    arrived = (
        "[...document.querySelectorAll('.reply > .markdown')].at(-1).textContent.trim()"
        f" === {json.dumps(text)}"
    )
    breaks = (
        f"while (!({arrived})) await new Promise((go) => setTimeout(go, 5));"
        " stream.error(new TypeError())"
    )
    real = "realFetch(path, options)"
    page.run(
        "(() => { globalThis.realFetch ??= fetch; const bytes = (text) =>"
        " new TextEncoder().encode(text); fetch = async (path, options) => {"
        f"  if (!options?.body) {f'return {real}' if ends else 'throw new TypeError()'};"
        "  sent = JSON.parse(options.body);"
        f"  const parts = {json.dumps(body)};"
        "  return new Response(new ReadableStream({pull: async (stream) => {"
        "    if (parts.length) stream.enqueue(bytes(parts.shift()));"
        f"    else {{ {end if ends else breaks}; }}"
        "  }})); }; })()"
    )


def click(page: Browser, text: str, within: str = "body") -> None:
    """Press the last button of this text."""
    page.run(
        f"[...document.querySelectorAll({json.dumps(within + ' button')})]"
        f".filter((each) => each.textContent === {json.dumps(text)}).at(-1).click()"
    )


def texts(page: Browser, selector: str) -> Any:
    return page.run(f"[...document.querySelectorAll('{selector}')].map((e) => e.textContent)")


def said(page: Browser) -> Any:
    """The contents of the last request."""
    return page.run("sent.messages.map(({content}) => content)")


def until_replied(page: Browser, count: int) -> None:
    page.until(f"document.querySelectorAll('.reply[aria-busy=false]').length === {count}")


def start_with(page: Browser, question: str, answer: str) -> None:
    """A chat of one reply, which is kept."""
    reply_with(page, {"content": answer})
    page.run("document.querySelector('#prompt').focus()")
    ask(page, question)
    page.until(
        "[...document.querySelectorAll('.chat span')]"
        f".some((each) => each.textContent === {json.dumps(question)})"
    )


def reload(page: Browser, server: RunningServer) -> None:
    page.open(f"{server.url}/", "document.title === 'demo'")


def test_another_try_and_an_edit_are_branches(page: Browser) -> None:
    start_with(page, "One", "first")
    reply_with(page, {"content": "second"})
    click(page, "Try again")
    page.until("document.querySelector('.branches')?.textContent.includes('2 of 2')")
    assert texts(page, ".reply > .markdown") == ["second"]
    click(page, EARLIER)
    assert texts(page, ".branches > span") == ["1 of 2"]
    page.run("document.querySelector('#prompt').focus()")
    page.type("Two")
    page.press("Enter")
    until_replied(page, 2)
    assert said(page) == ["One", "first", "Two"]
    page.run("document.querySelector('.user .tools button:last-child').click()")
    page.run("document.activeElement.select()")
    page.type("Uno")
    click(page, "Send", ".editor")
    until_replied(page, 1)
    assert said(page) == ["Uno"]
    assert texts(page, ".bubble") == ["Uno"]
    click(page, EARLIER, ".user")
    assert texts(page, ".bubble") == ["One", "Two"]
    assert texts(page, ".branches > span") == ["1 of 2", "1 of 2"]


def test_chats_are_kept_found_renamed_and_deleted(page: Browser, server: RunningServer) -> None:
    start_with(page, "About apples", "They are *red*.")
    page.run("document.querySelector('#new').click()")
    start_with(page, "About pears", "They are green.")
    reload(page, server)
    page.until("document.querySelector('.reply')")
    assert texts(page, ".bubble") == ["About pears"]  # the chat that this tab showed
    assert texts(page, ".chat span") == ["About pears", "About apples"]
    page.run("document.querySelector('#show-chats').click()")
    page.run("document.querySelector('#search').focus()")
    page.type("RED apples")
    assert texts(page, ".chat span") == ["About apples"]
    page.run("document.querySelector('.chat').click()")
    page.until("document.querySelector('.bubble').textContent === 'About apples'")
    assert page.run("document.querySelector('.reply em').textContent") == "red"
    page.run("prompt = () => 'Fruit'; confirm = () => true; 0")
    click(page, "Rename")
    page.until("document.querySelector('.chat span').textContent === 'Fruit'")
    click(page, "Delete")
    page.until("document.querySelector('#chats-note').textContent.startsWith('No chat has')")
    assert texts(page, "article") == []
    reload(page, server)
    page.until("document.querySelector('.chat')")
    assert texts(page, ".chat span") == ["About pears"]
    page.run("confirm = () => true; 0")
    click(page, "Delete all")
    page.until("!document.querySelector('.chat')")
    reload(page, server)
    assert page.run("indexedDB.databases().then((all) => all.length)") == 1
    assert texts(page, ".chat span") == []


def test_a_deleted_chat_does_not_come_back_with_the_rest_of_its_reply(
    page: Browser, server: RunningServer
) -> None:
    page.run(WATCH)
    page.run("confirm = () => true; 0")
    page.type("What is a KV cache?")
    page.press("Enter")
    page.until("document.querySelector('.chat')")
    click(page, "Delete")
    page.until("!document.querySelector('.chat') && !document.querySelector('#send').hidden")
    server.wait_until_idle()
    reload(page, server)
    page.until("document.querySelector('#chats-note').textContent === 'Chats appear here.'")


def test_nothing_is_kept_if_the_user_does_not_want_it(page: Browser, server: RunningServer) -> None:
    page.run("document.querySelector('#remember').click()")
    reply_with(page, {"content": "Yes."})
    ask(page, "A secret")
    reload(page, server)
    page.until("document.querySelector('#chats-note').textContent === 'Chats appear here.'")
    assert not page.run("document.querySelector('#remember').checked")
    assert texts(page, "article") == []


def test_a_full_history_says_so_and_keeps_what_it_has(page: Browser) -> None:
    page.run(
        "import('./page/store.js').then(async ({Store}) => {"
        "  const chats = (await Store.open()).database.transaction('chats', 'readwrite')"
        "    .objectStore('chats');"
        "  for (let i = 0; i < 500; i += 1) chats.put({id: `${i}`, title: '', messages: []});"
        "  await new Promise((done) => { chats.transaction.oncomplete = done; }); })"
    )
    reply_with(page, {"content": "Yes."})
    ask(page, "Is there room?")
    page.until("document.querySelector('#error').textContent.startsWith('The history is full')")
    assert texts(page, ".reply > .markdown") == ["Yes."]
    heads = "import('./page/store.js').then(async ({Store}) => (await Store.open()).heads())"
    assert len(page.run(heads)) == 500


def test_a_chat_is_exported(page: Browser) -> None:
    start_with(page, "What is *it*?", "It is `x`.")
    page.run(
        "HTMLAnchorElement.prototype.click = function () { exported.name = this.download; };"
        "URL.createObjectURL = (blob) => { exported = {text: blob.text()}; return 'data:,'; }; 0"
    )
    click(page, "Markdown")
    assert page.run("exported.name") == "What-is-it-.md"
    assert page.run("exported.text") == (
        "# What is *it*?\n\n## You\n\nWhat is *it*?\n\n## demo\n\nIt is `x`.\n"
    )
    click(page, "JSON")
    document = json.loads(page.run("exported.text"))
    assert [each["role"] for each in document["messages"]] == ["user", "assistant"]
    click(page, "Export all")
    page.until("exported.name === 'chats.json'")
    assert json.loads(page.run("exported.text")) == [document]


def test_text_files_go_with_the_message_and_others_are_refused(page: Browser) -> None:
    reply_with(page, {"content": "Yes."})
    page.drop([("a.py", "text/x-python", b"x = '```'\n")])
    page.until("document.querySelector('#attachments li')")
    ask(page, "Is it right?")
    assert said(page) == ["a.py:\n````py\nx = '```'\n````\n\nIs it right?"]
    assert page.run("document.querySelector('.bubble summary').textContent") == "a.py · 2 lines"
    for name, media_type, content, reason in (
        ("a.pdf", "application/pdf", b"%PDF", "is a PDF"),
        ("a.bin", "", b"a\0b", "neither UTF-8 text nor an image"),
        ("a.txt", "text/plain", b"\xff\xfe", "neither UTF-8 text nor an image"),
        ("a.log", "text/plain", b"a" * (2**20 + 1), "larger than 1 MiB"),
        ("a.png", "image/png", b"", "reads no images"),
    ):
        page.drop([(name, media_type, content)])
        page.until(f"document.querySelector('#error').textContent.includes({json.dumps(reason)})")
        assert name in page.run("document.querySelector('#error').textContent")
    assert texts(page, "#attachments li") == []


def test_what_was_written_stays_when_the_server_is_gone(page: Browser) -> None:
    reply_with(page, {"content": "It is "}, {"content": "a "}, ends=False)
    page.type("What is it?")
    page.press("Enter")
    page.until("document.querySelector('#error').textContent.includes('is kept')")
    assert "connection ended" in page.run("document.querySelector('.note').textContent")
    assert page.run(TEXT).strip() == "It is a"
    page.run("fetch = async () => { throw new TypeError('Failed to fetch'); }; 0")
    page.run("document.querySelector('#prompt').focus()")
    page.type("Hello?")
    page.press("Enter")
    page.until("document.querySelector('#error').textContent.startsWith('The server does not')")
    assert texts(page, ".bubble") == ["What is it?", "Hello?"]
    page.until("document.querySelector('#state').textContent === 'The server does not answer.'")
    reply_with(page, {"content": "Yes."})
    page.until("document.querySelector('#error').textContent.startsWith('The server answers')")
    click(page, "Try again")
    page.until("document.querySelectorAll('.reply > .markdown')[1].textContent === 'Yes.'")
    assert said(page) == ["What is it?", "It is a ", "Hello?"]
    assert texts(page, ".branches") == []  # the reply of which nothing came is no version


def test_a_lost_reply_is_continued(page: Browser) -> None:
    reply_with(page, {"content": "It is "}, ends=False)
    ask(page, "What is it?")
    reply_with(page, {"content": "a cache."})
    click(page, "Continue")
    page.until(f"{TEXT} === 'It is a cache.'")
    assert said(page) == ["What is it?", "It is "]
    assert page.run("sent.continue_final_message")
    assert "Continue" not in texts(page, ".reply button")


def test_a_reply_that_was_cut_off_is_continued_by_the_server(
    page: Browser, server: RunningServer
) -> None:
    page.run("document.querySelector('[name=max_tokens]').value = 3")
    page.run(WATCH)
    ask(page, "What is a KV cache?")
    begun = page.run(TEXT).replace("*", "")
    click(page, "Continue")
    page.until(f"{REPLY} && {TEXT}.length > {len(begun)}")
    assert page.run(TEXT).startswith(begun)
    assert page.run("document.querySelector('#error').hidden")


def test_a_reload_leaves_what_is_typed(page: Browser, server: RunningServer) -> None:
    page.type("Half a quest")
    reload(page, server)
    assert page.run("document.querySelector('#prompt').value") == "Half a quest"


def test_the_empty_page_says_what_the_model_is_and_what_to_try(page: Browser) -> None:
    page.until("document.querySelector('#welcome dl')")
    shown = page.run("document.querySelector('#welcome').innerText")
    for fact in ("demo", "llama, 2.3 million parameters, weights in BF16", "2,048 tokens"):
        assert fact in shown
    page.run("document.querySelector('.examples button').click()")
    question = page.run("document.querySelector('.examples button').textContent")
    assert page.run("document.querySelector('#prompt').value") == question
    assert page.run("document.activeElement.id") == "prompt"
    reply_with(page, {"content": "Yes."})
    page.press("Enter")
    page.until(REPLY)
    assert page.run("document.querySelector('#welcome').hidden")


def test_a_model_is_picked(page: Browser) -> None:
    slots = [ModelSlot(DEMO, "one"), ModelSlot(replace(DEMO, max_seqs=2), "two")]
    with running(slots=slots) as server:
        page.open(f"{server.url}/", "document.querySelector('#welcome dl')")
        assert texts(page, "#models option") == ["one", "two · not loaded"]
        page.run(
            "(() => { const picker = document.querySelector('#models'); picker.value = 'two';"
            " picker.dispatchEvent(new Event('change')); })()"
        )
        page.until("document.querySelector('#welcome').textContent.includes('It is not loaded')")
        page.run(WATCH)
        page.run("document.querySelector('[name=max_tokens]').value = 3")
        page.run("document.querySelector('#prompt').focus()")
        ask(page, "Hi")
        assert page.run("sent.model") == "two"
        page.until("document.querySelectorAll('#models option')[1].textContent === 'two'")
        page.run("document.querySelector('#new').click()")
        page.until("document.querySelector('#welcome dl')")
        page.run("document.querySelector('#show-plan').click()")
        page.until("document.querySelector('#plan[open]')?.innerText.includes('2 sequences')")


def test_the_progress_of_loading_is_shown(page: Browser) -> None:
    page.run(
        "(() => { const body = new ReadableStream({start: (stream) => stream.enqueue("
        ' new TextEncoder().encode(\'data: {"choices": [], "load_progress": 0.435}\\n\\n\'))});'
        " globalThis.realFetch = fetch; fetch = async (path, options) =>"
        " options?.body ? new Response(body) : realFetch(path, options); })()"
    )
    page.type("Hi")
    page.press("Enter")
    page.until("document.querySelector('#state').textContent === 'loading, 43 %'")
