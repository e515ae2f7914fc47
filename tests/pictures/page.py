"""Takes screenshots of the server's page: a chat with the demo vision model, the empty page on a
phone, and how Markdown is drawn, of which the reply is not a model's.

    PYTHONPATH=tests:tests/server:tests/pictures python tests/pictures/page.py man

Needs Chromium and pngquant.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from browser import Browser, browsing, find_chromium
from chat_page import FORGET, SEES, reply_with
from made_pdf import pdf
from running_server import running
from screens import REPLY, say

from mrs.request import ModelSource, VisionRequest

IMAGE = Path(__file__).with_name("three_red_circles.png")
FILES = [("circles.png", "image/png", IMAGE.read_bytes())]
MORE_FILES = [("paper.pdf", "application/pdf", pdf([["Attention is a weighted sum of values."]]))]


def main(folder: Path) -> None:
    program = find_chromium()
    assert program, "install Chromium"
    source = ModelSource("demo-vision", "safetensors")
    with (
        TemporaryDirectory(ignore_cleanup_errors=True) as profile,
        running(source=source, vision=VisionRequest()) as server,
        browsing(program, Path(profile)) as page,
    ):
        page.show(390, 870, dark=True)
        page.open(f"{server.url}/", SEES)
        take(page, folder / "page-phone.png")
        page.show(820, 740)
        reply_with(page, {"content": REPLY})
        say(page, "Compare two protocols.", replies=1)
        page.run("document.querySelector('.note').textContent = ''")  # speed of no model
        take(page, folder / "page-markdown.png")
        page.run(FORGET)
        page.show(1200, 720)
        page.open(f"{server.url}/", SEES)
        attach(page, FILES)
        say(page, "What is in this image?", replies=1)
        say(page, "What colour are they?", replies=2)
        page.until("document.querySelector('.chat')")
        attach(page, MORE_FILES)
        take(page, folder / "page.png")


def attach(page: Browser, files: list[tuple[str, str, bytes]]) -> None:
    page.drop(files)
    page.until(
        f"document.querySelectorAll('#attachments li').length === {len(files)} &&"
        " !document.querySelector('#attachments').textContent.includes('reading')"
    )


def take(page: Browser, file: Path) -> None:
    page.run("document.activeElement.blur(); scrollTo(0, document.body.scrollHeight)")
    page.screenshot(file)
    subprocess.run(
        ["pngquant", "--force", "--skip-if-larger", "--strip", "--output", file, "128", file],
        check=True,
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
