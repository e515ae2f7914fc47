"""Files on the chat page: those of a message, and those of chats. In a browser."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from browser import Browser
from chat_page import SEES, TEXT, WATCH, ask, reload, reply_with, said, start_with, texts
from made_pdf import CHINESE, NEEDS_PASSWORD, pdf
from running_server import RunningServer, running

from mrs.request import ModelSource, VisionRequest

pytestmark = pytest.mark.full

IMAGES = Path(__file__).parents[1] / "pictures"
ERROR = "document.querySelector('#error').textContent"
IS_READ = (
    "document.querySelector('#attachments li') &&"
    " !document.querySelector('#attachments').textContent.includes('reading')"
)
PDF = "application/pdf"
#: More than a MiB of text in 350 pages.
LONG_PDF = pdf([["and so on " * 10] * 35] * 350)


@pytest.fixture(scope="module")
def viewer() -> Iterator[RunningServer]:
    source = ModelSource("demo-vision", "safetensors")
    with running(source=source, vision=VisionRequest()) as made:
        yield made


def test_text_files_go_with_the_message(page: Browser) -> None:
    reply_with(page, {"content": "Yes."})
    page.drop([("a.py", "text/x-python", b"x = '```'\n")])
    page.until(IS_READ)
    ask(page, "Is it right?")
    assert said(page) == ["a.py:\n````py\nx = '```'\n````\n\nIs it right?"]
    assert page.run("document.querySelector('.bubble summary').textContent") == "a.py · 2 lines"


def test_the_text_of_a_pdf_goes_with_the_message(page: Browser) -> None:
    page.run("performance.clearResourceTimings()")
    fetched = "performance.getEntriesByType('resource').some(({name}) => name.includes('pdf.min'))"
    assert not page.run(fetched)
    page.drop([("paper.PDF", "", pdf([["Title", "Text \\(first\\)."], ["The end."]]))])
    page.until(IS_READ)
    assert page.run(fetched)  # with the first file
    assert "tokens" in page.run("document.querySelector('#attachments').textContent")
    reply_with(page, {"content": "Yes."})
    ask(page, "What is it?")
    text = "Title\nText (first).\n\nThe end."
    assert said(page) == [f"paper.PDF:\n```PDF\n{text}\n```\n\nWhat is it?"]


@pytest.mark.parametrize(
    ("name", "media_type", "content", "reason"),
    [
        ("a.bin", "", b"a\0b", "is neither UTF-8 text nor a PDF or an image"),
        ("a.txt", "text/plain", b"\xff\xfe", "is neither UTF-8 text nor a PDF or an image"),
        ("a.log", "text/plain", b"a" * (2**20 + 1), "is larger than 1 MiB: attach the part"),
        ("b.log", "text/plain", b"word " * 3000, "and the model's context is 2,048: attach"),
        ("a.png", "image/png", b"", "is left out: the model reads no images"),
        ("a.pdf", PDF, b"%PDF-1.7 but not one", "is a damaged PDF"),
        ("b.pdf", PDF, pdf([["a"]], more=NEEDS_PASSWORD), "needs a password"),
        ("c.pdf", PDF, pdf([[]]), "has no text: it may be a scan"),
        ("d.pdf", PDF, pdf([["ab"]], CHINESE), "has fonts that this page cannot read (UniGB-UCS2"),
        ("e.pdf", PDF, LONG_PDF, "has more than 1 MiB of text: attach the pages that matter"),
    ],
    ids=lambda value: value if isinstance(value, str) and value[1:2] == "." else "",
)
def test_other_files_are_refused(
    page: Browser, name: str, media_type: str, content: bytes, reason: str
) -> None:
    page.drop([(name, media_type, content)])
    page.until(f"{ERROR}.startsWith('{name} ') && {ERROR}.includes({json.dumps(reason)})")
    assert texts(page, "#attachments li") == []
    page.drop([("a.md", "", b"text")])
    page.until(IS_READ)
    assert page.run(ERROR) == ""


def test_files_that_do_not_fit_together_are_refused(page: Browser) -> None:
    page.drop([(f"{number}.txt", "text/plain", b"word " * 300) for number in range(30)])
    page.until(f"{ERROR}.includes('beside the other files')")
    assert 0 < len(texts(page, "#attachments li")) < 20
    assert "29.txt has" in page.run(ERROR)


def test_a_message_waits_for_its_files(page: Browser) -> None:
    reply_with(page, {"content": "Yes."})
    page.drop([("a.pdf", PDF, LONG_PDF)])
    page.type("What is it?")
    page.press("Enter")
    assert page.run(ERROR).startswith("a.pdf is being read")
    assert texts(page, "article") == []
    page.until(f"{ERROR}.includes('1 MiB')")
    assert page.run("document.querySelector('#prompt').value") == "What is it?"


def test_a_pasted_text_is_no_file(page: Browser) -> None:
    page.run(
        "(() => { const data = new DataTransfer(); data.setData('text/plain', 'a');"
        " data.items.add(new File(['x'], 'a.md'));"
        " const paste = () => dispatchEvent(new ClipboardEvent('paste', {clipboardData: data}));"
        " paste(); data.clearData('text/plain'); data.items.add(new File(['x'], 'b.md')); paste();"
        "})()"
    )
    page.until(IS_READ)
    assert [each.split()[0] for each in texts(page, "#attachments li")] == ["a.md", "b.md"]


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


def exported(page: Browser, button: str) -> Any:
    page.run(
        "URL.createObjectURL = (blob) => { exported = blob.text(); return 'data:,'; };"
        " exported = null; 0"
    )
    page.run(
        "[...document.querySelectorAll('#chats button')]"
        f".find((each) => each.textContent === {json.dumps(button)}).click()"
    )
    page.until("exported")
    return json.loads(page.run("exported"))


def bring_in(page: Browser, text: str, note: str) -> None:
    """Import a file; the drawer then says `note`."""
    page.run("document.querySelector('#chats-note').textContent = ''")
    page.run(
        "(() => { const data = new DataTransfer();"
        f" data.items.add(new File([{json.dumps(text)}], 'chats.json'));"
        " const field = document.querySelector('#chats-file'); field.files = data.files;"
        " field.dispatchEvent(new Event('change')); })()"
    )
    page.until("document.querySelector('#chats-note').textContent.endsWith('.')")
    assert note in page.run("document.querySelector('#chats-note').textContent")


def test_exported_chats_come_back(page: Browser, server: RunningServer) -> None:
    start_with(page, "About apples", "They are *red*.")
    page.run("document.querySelector('#new').click()")
    start_with(page, "About pears", "They are green.")
    document = exported(page, "Export all")
    bring_in(page, json.dumps(document), "0 chats imported; 2 chats had been here before.")
    page.run("confirm = () => true; document.querySelector('#delete-all').click()")
    page.until("!document.querySelector('.chat')")
    bring_in(page, json.dumps(document), "2 chats imported.")
    assert sorted(texts(page, ".chat span")) == ["About apples", "About pears"]
    changed = {**document[0], "updated": 1, "title": "Another"}
    bring_in(page, json.dumps(changed), "1 chat imported.")
    assert len(texts(page, ".chat span")) == 3
    assert texts(page, ".bubble") == [document[0]["messages"][0]["text"]]  # one chat is shown
    reload(page, server)
    page.until("document.querySelectorAll('.chat').length === 3")


def test_markup_of_an_imported_chat_is_text(page: Browser) -> None:
    start_with(page, "One", "first")
    evil = "<img src=x onerror=alert(1)>"
    chat = exported(page, "JSON") | {"id": "evil", "title": evil}
    chat["messages"][0] |= {"text": evil, "files": [{"name": evil, "text": evil}]}
    chat["messages"][1] |= {"text": evil, "model": evil, "note": evil, "thoughts": evil}
    bring_in(page, json.dumps(chat), "1 chat imported.")
    assert evil in texts(page, ".chat span")
    assert texts(page, ".bubble > p") == [evil]
    assert texts(page, ".note") == [evil]
    assert not page.run("document.querySelector('main img, #chats img')")


CHANGES = {
    "is not an export": lambda chat: {"a": 1},
    "does not have 1 to 500 chats": lambda chat: [],
    "chat 1 is not an object": lambda chat: [None],
    "chat 1 has no title": lambda chat: chat | {"title": {"toString": 1}},
    "chat 1 has no id": lambda chat: chat | {"id": "../x"},
    "chat 1 has no dates": lambda chat: chat | {"created": 1e300},
    "ends with a message that is not there": lambda chat: chat | {"last": 7},
    "message 1 of chat 1 is not in its place": lambda chat: with_message(chat, 0, id=1),
    "message 1 of chat 1 follows": lambda chat: with_message(chat, 0, parent=0),
    "message 1 of chat 1 has no text": lambda chat: with_message(chat, 0, text=None),
    "has an unknown role": lambda chat: with_message(chat, 1, role="system"),
    "has an invalid image": lambda chat: with_message(chat, 0, images=["http://a.example/x"]),
    "message 2 of chat 1 names no model": lambda chat: with_message(chat, 1, model=[]),
    "more than 5000 messages": lambda chat: chat | {"messages": [chat["messages"][0]] * 5001},
}


def with_message(chat: dict[str, Any], index: int, **fields: Any) -> dict[str, Any]:
    changed = deepcopy(chat)
    changed["messages"][index] |= fields
    return changed


def test_a_file_that_is_no_export_is_refused_whole(page: Browser) -> None:
    start_with(page, "One", "first")
    chat = exported(page, "JSON")
    bring_in(page, "{", "chats.json is not JSON")
    for reason, change in CHANGES.items():
        wrong = change(chat)
        bring_in(page, json.dumps(wrong), reason)
        if isinstance(wrong, dict):
            bring_in(page, json.dumps([chat | {"id": "good"}, wrong]), "Nothing is imported.")
    assert texts(page, ".chat span") == ["One"]


def test_nothing_is_imported_where_nothing_is_kept(page: Browser) -> None:
    page.run("document.querySelector('#remember').click()")
    bring_in(page, "[]", "This browser keeps no chats")
