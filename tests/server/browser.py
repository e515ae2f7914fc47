"""A headless Chromium, driven over pipes with the DevTools protocol."""

from __future__ import annotations

import base64
import fcntl
import itertools
import json
import os
import select
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.suites import BROWSERS

SECONDS = 20.0
_FLAGS = (
    "--headless",
    "--no-sandbox",  # for tests that run as root; the pages are this program's own
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--remote-debugging-pipe",
)


def find_chromium() -> str:
    return next(filter(None, map(shutil.which, BROWSERS)))


class Browser:
    """One page of a browser; `problems` collects what its console and its policy report."""

    def __init__(self, write: int, read: int) -> None:
        self._write, self._read = write, read
        self._ids = itertools.count(1)
        self._rest = b""
        self._session: str | None = None
        self.problems: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> Any:
        """The result of a command of the protocol. Raises AssertionError for an error."""
        number = next(self._ids)
        message = {"id": number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]

    def _receive(self) -> Any:
        while b"\0" not in self._rest:
            assert select.select([self._read], [], [], SECONDS)[0], "the browser does not answer"
            self._rest += (received := os.read(self._read, 1 << 20))
            assert received, "the browser has ended"
        line, _, self._rest = self._rest.partition(b"\0")
        message = json.loads(line)
        if message.get("method") == "Log.entryAdded":
            self.problems.append(message["params"]["entry"]["text"])
        if message.get("method") == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(message["params"]["exceptionDetails"]))
        return message

    def open(self, url: str, ready: str) -> None:
        self.call("Page.navigate", url=url)
        self.until(f"document.readyState === 'complete' && ({ready})")

    def run(self, script: str) -> Any:
        """The value of an expression, or of the promise that it is."""
        answer = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, condition: str) -> None:
        deadline_s = time.monotonic() + SECONDS
        while not self.run(f"Boolean({condition})"):
            assert time.monotonic() < deadline_s, f"{condition} did not become true"
            time.sleep(0.02)

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def press(self, key: str, *, shift: bool = False, held: Sequence[str] = ()) -> None:
        """Press a key while others are `held`."""
        codes = {"Enter": 13, "Escape": 27, "Tab": 9, "ArrowUp": 38}
        common = {"key": key, "code": key, "windowsVirtualKeyCode": codes.get(key, ord(key[0]))}
        text = {"text": "\r"} if key == "Enter" else {}
        bits = {"Control": 2, "Meta": 4, "Shift": 8}
        modifiers = 8 * shift | sum(bits[each] for each in held)
        self.call("Input.dispatchKeyEvent", type="keyDown", modifiers=modifiers, **common, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", modifiers=modifiers, **common)

    def drop(self, files: Sequence[tuple[str, str, bytes]]) -> None:
        """Drop files on the page, each with its name, type and content."""
        texts = json.dumps([[*names, base64.b64encode(file).decode()] for *names, file in files])
        self.run(
            "(() => { const data = new DataTransfer();"
            f" for (const [name, type, text] of {texts}) {{"
            "   const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));"
            "   data.items.add(new File([bytes], name, {type})); }"
            " const options = {dataTransfer: data, bubbles: true, cancelable: true};"
            " document.body.dispatchEvent(new DragEvent('drop', options)); })()"
        )

    def drop_images(self, files: Sequence[bytes]) -> None:
        """Drop PNG files on the page, and wait until it shows them."""
        self.drop([("a.png", "image/png", file) for file in files])
        self.until(f"document.querySelectorAll('#attachments img').length === {len(files)}")

    def show(self, width: int, height: int, *, dark: bool = False) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))


@contextmanager
def browsing(program: str, folder: Path) -> Iterator[Browser]:
    """A browser whose profile is in `folder`."""
    (its_read, write), (read, its_write) = _pipe(), _pipe()
    argv = [program, *_FLAGS, f"--user-data-dir={folder}", "about:blank"]
    with (folder / "log").open("wb") as log:
        pid = os.posix_spawn(
            program,
            argv,
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, log.fileno(), 2),
                (os.POSIX_SPAWN_DUP2, its_read, 3),
                (os.POSIX_SPAWN_DUP2, its_write, 4),
            ],
            setpgroup=0,
        )
    os.close(its_read)
    os.close(its_write)
    try:
        yield Browser(write, read)
    finally:
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(write)
        os.close(read)


def _pipe() -> tuple[int, int]:
    """A pipe whose ends are not 3 or 4, which are the browser's."""
    ends = os.pipe()
    read, write = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends)
    for end in ends:
        os.close(end)
    return read, write
