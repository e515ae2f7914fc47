"""What a person sees of loading and of streamed replies, in a notebook or a terminal.

IPython is never imported: where its kernel runs the program, it is there already.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mrs.events import DISK, LoadProgress, OnProgress
from mrs.units import human_bytes

if TYPE_CHECKING:
    from mrs.api.chunk_stream import ChunkStream
    from mrs.api.responses import ChatCompletionChunkResponse

#: Between two changes of what is shown.
_SECONDS = 0.1
_RULE = "\n\n---\n\n"

#: Shows a text in the place of the one before.
Show = Callable[[str], None]


def show_progress() -> OnProgress:
    """A function for `on_progress` of a `Runner`: shows how much is downloaded and loaded.

    In a notebook this is a line below the cell, and in a terminal one on standard error; elsewhere
    standard error gets a line when all bytes are there.
    """
    return notebook_progress() or _Progress(_write)


def notebook_progress() -> OnProgress | None:
    """As `show_progress` in a notebook, and None elsewhere."""
    show = _notebook("text/plain")
    return _Progress(lambda text, is_whole: show(text)) if show else None


def show_reply(stream: ChunkStream[ChatCompletionChunkResponse]) -> str:
    """Show a streamed reply as it arrives, and return its text. Raises MrsError.

    In a notebook it is drawn as Markdown, elsewhere written to standard output. Several choices
    are parted by a rule.
    """
    show = _notebook("text/markdown")
    texts: dict[int, str] = {}
    shown_s = 0.0
    for chunk in stream:
        for choice in chunk.choices:
            added = choice.delta.content
            texts[choice.index] = texts.get(choice.index, "") + added
            if show is None and choice.index == 0:
                print(added, end="", flush=True)
        if show is not None and time.monotonic() - shown_s > _SECONDS:
            show(_joined(texts))
            shown_s = time.monotonic()
    whole = _joined(texts)
    if show is not None:
        show(whole)
    else:
        print(whole.removeprefix(texts.get(0, "")))
    return whole


def _joined(texts: dict[int, str]) -> str:
    return _RULE.join(texts[index] for index in sorted(texts))


class _Progress:
    """Takes the events of any thread."""

    def __init__(self, show: Callable[[str, bool], None]) -> None:
        self._show = show
        self._states: dict[str, LoadProgress] = {}
        self._shown_s = 0.0
        self._lock = threading.Lock()

    def __call__(self, state: LoadProgress) -> None:
        with self._lock:
            self._states[state.device] = state
            is_whole = all(each.done_bytes >= each.total_bytes for each in self._states.values())
            if is_whole or time.monotonic() - self._shown_s > _SECONDS:
                self._shown_s = time.monotonic()
                self._show(", ".join(map(_said, self._states.values())), is_whole)


def _write(text: str, is_whole: bool) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="\n" if is_whole else "", file=sys.stderr, flush=True)
    elif is_whole:
        print(text, file=sys.stderr)


def _said(state: LoadProgress) -> str:
    where = "downloaded" if state.device == DISK else f"loaded on {state.device}"
    return f"{human_bytes(state.done_bytes)} of {human_bytes(state.total_bytes)} {where}"


def _notebook(media_type: str) -> Show | None:
    """Shows texts below the cell that runs; None if no notebook runs the program."""
    ipython: Any = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if getattr(shell, "kernel", None) is None:
        return None
    handle: Any = None

    def show(text: str) -> None:
        nonlocal handle
        content = {"text/plain": text, media_type: text}
        if handle is None:
            handle = ipython.display.display(content, raw=True, display_id=True)
        else:
            handle.update(content, raw=True)

    return show
