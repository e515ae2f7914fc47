"""Takes screenshots of the server's page: a chat with the demo vision model, and a phone's view.

    PYTHONPATH=tests:tests/server python tests/pictures/page.py man

Needs Chromium.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from browser import browsing, find_chromium
from chat_page import SEES
from running_server import running

from mrs.request import ModelSource, VisionRequest

IMAGE = Path(__file__).with_name("three_red_circles.png")
QUESTIONS = ("What is in this image?", "What colour are they?")


def main(folder: Path) -> None:
    program = find_chromium()
    assert program, "install Chromium"
    source = ModelSource("demo-vision", "safetensors")
    with (
        TemporaryDirectory(ignore_cleanup_errors=True) as profile,
        running(source=source, vision=VisionRequest()) as server,
        browsing(program, Path(profile)) as page,
    ):
        page.show(390, 780, dark=True)
        page.open(f"{server.url}/", SEES)
        page.screenshot(folder / "page-phone.png")
        page.show(1200, 680)
        page.open(f"{server.url}/", SEES)
        page.drop_images([IMAGE.read_bytes()])
        for count, question in enumerate(QUESTIONS, 1):
            page.type(question)
            page.press("Enter")
            page.until(f"document.querySelectorAll('.reply[aria-busy=false]').length === {count}")
        page.until("document.querySelector('.chat')")
        page.screenshot(folder / "page.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
