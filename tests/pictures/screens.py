"""Shows each screen of the server's page at three widths and in two themes, and has axe-core look
at it: prints what it finds, and writes the screens to a folder.

    npm pack axe-core && tar -xzf axe-core-*.tgz
    PYTHONPATH=tests:tests/server python tests/pictures/screens.py package/axe.min.js FOLDER

Needs Chromium. Exits with 1 if axe-core finds something, or a screen is wider than its window.
"""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

from browser import Browser, browsing, find_chromium
from chat_page import FORGET, SEES, click, reply_with, until_replied
from made_pdf import pdf
from running_server import RunningServer, running

from mrs.request import ModelSource, VisionRequest

IMAGE = Path(__file__).with_name("three_red_circles.png")
SIZES = ((390, 844), (820, 1180), (1280, 860))
VIOLATIONS = (
    "axe.run().then(({violations}) => violations.flatMap(({id, nodes}) =>"
    " nodes.map(({target, failureSummary}) => `${id}: ${target}: ${failureSummary}`)))"
)
TOO_WIDE = (
    "[...document.querySelectorAll('html, header, main, footer, dialog[open]')]"
    ".filter((each) => each.scrollWidth > each.clientWidth).map(({tagName, id}) => tagName + id)"
)
REPLY = r"""Here is **a table**, and a formula: $e^{i\pi} + 1 = 0$.

| Protocol | Ordered | `a\|b` |
|:--|:-:|--:|
| TCP | yes | 20 |

\[ \mathrm{softmax}(x)_i = \frac{e^{x_i}}{\sum_j e^{x_j}}, \qquad x \in \mathbb{R}^n \]

- [x] read the question
- [ ] write the function

```python
def count_words(text: str) -> int:
    # split() takes any white space
    return len(text.split())
```

See https://example.org/a_b, ***really***."""


class Screens:
    """The screens of one size and theme."""

    def __init__(self, page: Browser, suffix: str, folder: Path) -> None:
        self._page, self._suffix, self._folder = page, suffix, folder
        self.problems: list[str] = []

    def take(self, name: str) -> None:
        name = f"{name}-{self._suffix}"
        self._page.screenshot(self._folder / f"{name}.png")
        found = self._page.run(VIOLATIONS)
        found += [f"{each} is wider than its place" for each in self._page.run(TOO_WIDE)]
        self.problems += [f"{name}: {each}" for each in found]


def visit(page: Browser, screens: Screens) -> None:
    """Go through the page as a person would."""
    page.until("document.querySelector('#welcome dl')")
    screens.take("empty")
    files = [
        ("a.png", "image/png", IMAGE.read_bytes()),
        ("count.py", "", b"def f():\n    return 1\n"),
        ("paper.pdf", "application/pdf", pdf([["A short paper", "about attention."]])),
        ("notes.docx", "", b"PK\0\0"),
    ]
    page.drop(files)
    page.until("document.querySelector('#error').textContent.includes('notes.docx')")
    screens.take("attached")
    say(page, "What is in this image?", replies=1)
    reply_with(page, {"reasoning_content": "Let me see."}, {"content": REPLY})
    say(page, "Compare protocols.", replies=2)
    click(page, "Try again")
    page.until("document.querySelector('.branches')")
    screens.take("chat")
    page.run("[...document.querySelectorAll('.user .tools button')].at(-1).click()")
    screens.take("edit")
    click(page, "Cancel")
    page.run("fetch = async () => { throw new TypeError(); }; 0")
    say(page, "Are you there?", replies=3)
    screens.take("gone")
    page.run("fetch = realFetch; 0")
    for dialog in ("chats", "settings", "plan"):
        if page.run(f"!document.querySelector('#{dialog}').open"):
            page.run(f"document.querySelector('#show-{dialog}').click()")
        page.until(f"document.querySelector('#{dialog}').open")
        screens.take(dialog)
        page.press("Escape")


def say(page: Browser, text: str, replies: int) -> None:
    page.run("document.querySelector('#prompt').focus()")
    page.type(text)
    page.press("Enter")
    until_replied(page, replies)


def open_anew(page: Browser, server: RunningServer, axe: str) -> None:
    page.open(f"{server.url}/", SEES)
    page.run(FORGET)
    page.open(f"{server.url}/", SEES)
    page.run(f"{axe}; 0")


def main(axe: Path, folder: Path) -> int:
    program = find_chromium()
    assert program, "install Chromium"
    source = ModelSource("demo-vision", "safetensors")
    problems = []
    with (
        TemporaryDirectory(ignore_cleanup_errors=True) as profile,
        running(source=source, vision=VisionRequest()) as server,
        browsing(program, Path(profile)) as page,
    ):
        for (width, height), is_dark in product(SIZES, (False, True)):
            page.show(width, height, dark=is_dark)
            open_anew(page, server, axe.read_text())
            screens = Screens(page, f"{width}-{'dark' if is_dark else 'light'}", folder)
            visit(page, screens)
            problems += screens.problems
    print("\n".join(problems) or "nothing is wrong")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
