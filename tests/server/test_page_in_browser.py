"""What the chat page does in a browser. Its Markdown: `test_page_markdown.py`."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from browser import Browser
from chat_page import (
    EARLIER,
    REPLY,
    TEXT,
    WATCH,
    ask,
    click,
    reload,
    reply_with,
    said,
    start_with,
    texts,
    until_replied,
)
from running_server import DEMO, RunningServer, load, running
from server_process import Process

from mrs.events import LoadProgress
from mrs.request import RunRequest
from mrs.run.loaded_model import LoadedModel
from mrs.server.models.slot import ModelSlot
from mrs.server.settings import ServerSettings
from support.waiting import PATIENCE_S

pytestmark = pytest.mark.full

KEY = "secret"


@pytest.fixture(scope="module")
def locked() -> Iterator[RunningServer]:
    with running(ServerSettings(api_keys=(KEY,))) as made:
        yield made


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
    assert re.match(rf"{reply['usage']['completion_tokens']} tokens · [\d.,]+ tokens/s · pl", note)
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


def test_a_server_that_was_killed_is_used_again(
    page: Browser, start: Callable[..., Process]
) -> None:
    words = ("-p", "0", "plain", "-m", "demo")
    killed = start(*words, slow=True)
    page.open(f"{killed.url}/", "document.querySelector('#welcome dl')")
    page.run(WATCH)
    page.type("What is a KV cache?")
    page.press("Enter")
    page.until(f"{TEXT}.length > 20")
    killed.process.kill()
    page.until("document.querySelector('#error').textContent.includes('try again when')")
    begun = page.run(TEXT)
    assert page.run("document.querySelector('#stop').hidden")
    page.until("document.querySelector('#state').textContent === 'The server does not answer.'")
    again = start("-p", killed.url.rpartition(":")[2], *words[2:])
    assert again.url == killed.url
    page.until("document.querySelector('#error').textContent.startsWith('The server answers')")
    click(page, "Continue")
    page.until(f"{REPLY} && {TEXT}.length > {len(begun)}")
    assert page.run(TEXT).startswith(begun.rstrip())
    assert page.run("document.querySelector('#error').hidden")
    # What the browser says of a server that was gone is no fault of the page.
    page.problems[:] = [each for each in page.problems if "Failed to load" not in each]


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


PICKED = "document.querySelector('#models').selectedOptions[0]"


def pick(page: Browser, name: str) -> None:
    page.run(
        "(() => { const picker = document.querySelector('#models');"
        f" picker.value = '{name}'; picker.dispatchEvent(new Event('change')); }})()"
    )


def test_a_model_is_picked(page: Browser) -> None:
    slots = [ModelSlot(DEMO, "one"), ModelSlot(replace(DEMO, max_seqs=2), "two")]
    with running(slots=slots) as server:
        page.open(f"{server.url}/", "document.querySelector('#welcome dl')")
        assert texts(page, "#models option") == ["one", "two · not loaded"]
        pick(page, "two")
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
    is_shown, may_load = threading.Event(), threading.Event()

    def load_slowly(request: RunRequest, on_progress: Any, memory: Any = None) -> LoadedModel:
        if may_load.is_set():
            on_progress(LoadProgress("cpu", 435, 1000))
            assert is_shown.wait(PATIENCE_S)
        return load(request, on_progress, memory)

    slots = [ModelSlot(DEMO, "one"), ModelSlot(replace(DEMO, max_seqs=2), "two")]
    with running(slots=slots, load=load_slowly) as server:
        page.open(f"{server.url}/", "document.querySelector('#welcome dl')")
        may_load.set()
        pick(page, "two")
        page.run("document.querySelector('#prompt').focus()")
        page.type("Hi")
        page.press("Enter")
        page.until("document.querySelector('#state').textContent === 'loading, 43 %'")
        assert page.run("document.querySelector('#loading').value") == 0.435
        page.run("document.querySelector('#new').click()")
        pick(page, "two")
        page.until("document.querySelector('#welcome').innerText.includes('being loaded: 43 %')")
        page.until(f"{json.dumps('two · loading, 43 %')} === {PICKED}.textContent")
        is_shown.set()
        page.until(f"{PICKED}.textContent === 'two' && document.querySelector('#welcome dl')")
        assert page.run("document.querySelector('#loading').hidden")


@pytest.mark.parametrize("name", ["Control", "Meta"])
def test_keys_do_what_the_settings_list(page: Browser, name: str) -> None:
    reply_with(page, {"content": "Yes."})
    ask(page, "Is it?")
    page.press("ArrowUp")
    assert page.run("document.activeElement.value") == "Is it?"
    page.press("Escape")
    page.press("k", held=(name,))
    assert page.run("document.querySelector('#chats').open && document.activeElement.id") == (
        "search"
    )
    page.press("Escape")
    page.until("!document.querySelector('dialog[open]')")
    page.press("/", held=(name,))
    assert page.run("document.querySelector('#settings').open && document.activeElement.id") == (
        "keys"
    )
    listed = page.run("document.querySelector('.keys').innerText")
    assert all(key in listed for key in ("Enter", "Shift", "Esc", "↑", "K", "O", "/"))
    page.press("Escape")
    page.until("!document.querySelector('dialog[open]')")
    page.press("O", held=(name, "Shift"))
    assert texts(page, "article") == []
    assert page.run("document.activeElement.id") == "prompt"


def test_a_screen_reader_gets_a_reply_at_its_end(page: Browser) -> None:
    reply_with(page, {"content": "It is **"}, {"content": "red**. " + "And so on. " * 200})
    ask(page, "What is it?")
    spoken = "document.querySelector('#spoken[role=status]').textContent"
    page.until(spoken)
    assert page.run(spoken).startswith("The reply is complete: It is red. And so on.")
    assert len(page.run(spoken)) < 1600
    live = page.run(
        "[...document.querySelectorAll('#messages, #messages *')].filter("
        "(each) => each.matches('[aria-live], [role=log], [role=status]')).length"
    )
    assert live == 0  # or each chunk would be read aloud
    reply_with(page, {"content": "It is"}, ends=False)
    page.type("And now?")
    page.press("Enter")
    page.until(f"{spoken} === 'The reply is not complete: It is'")


def test_chats_stay_beside_a_chat_in_a_wide_window(page: Browser, server: RunningServer) -> None:
    page.show(1300, 640)
    page.until("document.querySelector('#chats').open")
    assert page.run("document.activeElement.id") == "prompt"
    assert page.run("document.querySelector('#chats').getBoundingClientRect().right") <= page.run(
        "document.querySelector('main').getBoundingClientRect().left"
    )
    page.show(900, 640)
    page.until("!document.querySelector('#chats').open")
    page.show(1300, 640)
    page.until("document.querySelector('#chats').open")
    page.run("document.querySelector('#close-chats').click()")
    reload(page, server)
    assert not page.run("document.querySelector('#chats').open")  # as the user left it
