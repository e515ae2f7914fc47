"""What tests do with the chat page in a browser."""

from __future__ import annotations

import json
from typing import Any

from browser import Browser
from running_server import RunningServer

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


def ask(page: Browser, text: str) -> None:
    page.type(text)
    page.press("Enter")
    page.until(REPLY)


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
