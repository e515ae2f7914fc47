"""A screen on a terminal: an editor for messages, Markdown for replies."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from textwrap import wrap
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from rich.control import Control

from mrs.errors import MrsError
from mrs.events import Event
from mrs.text.thought_splitter import ThoughtSplitter
from mrs_cli.chat.multiline_text import is_open
from mrs_cli.chat.screens.chat_completion import chat_completer
from mrs_cli.chat.screens.resizing import follow_resizes
from mrs_cli.chat.state_folder import state_folder
from mrs_cli.environment import Environment
from mrs_cli.render.markdown import MarkdownStream
from mrs_cli.render.reply_events import CompleteReply, receive
from mrs_cli.render.safe_text import one_line, printable
from mrs_cli.render.statistics import statistics_line
from mrs_cli.render.theme import console

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.history import History
    from prompt_toolkit.key_binding import KeyBindings

MARK = "\u203a "

_Answer = TypeVar("_Answer")


class TerminalScreen:
    """See `Screen`. The caller turns the terminal's echo off.

    The first message begins with the keys in `typed_ahead`. While `vision`, Tab completes paths of
    images.
    """

    attended = True
    edits = True

    def __init__(
        self, environment: Environment, typed_ahead: str, *, quiet: bool, vision: Callable[[], bool]
    ) -> None:
        self._quiet = quiet
        self._console = console(environment, environment.stdout)
        self._mark = MARK if _can_encode(MARK, environment.stdout.encoding) else "> "
        self._editor = _editor(environment, self._mark, vision)
        if typed_ahead:
            _press(self._editor, typed_ahead)

    def greet(self, summary: str) -> None:
        if not self._quiet:
            self._console.print(
                "\\help lists the commands, Alt-Enter starts a new line, Ctrl-D leaves",
                style="quiet",
            )

    def read(self, draft: str = "") -> str | None:
        self._console.print()
        try:
            text = _prompt(self._editor, default=draft)
        except EOFError:
            return None
        except KeyboardInterrupt:  # the first one deletes what was typed
            if draft or self._editor.default_buffer.text:
                return ""
            raise
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")

    def ask(self, question: str) -> str:
        from prompt_toolkit import PromptSession

        self._console.print()
        try:
            return _prompt(PromptSession[str](printable(f"{question} "))).strip().lower()
        except (EOFError, KeyboardInterrupt):
            return ""

    def confirm(self, question: str) -> bool:
        from prompt_toolkit.shortcuts import create_confirm_session

        self._console.print()
        # A prompt breaks its last line only; longer lines before that would be cut.
        *lines, last = printable(question).split("\n")
        for line in lines:
            self._console.print(line)
        try:
            return _prompt(create_confirm_session(last, suffix=" (y/n) "))
        except (EOFError, KeyboardInterrupt):
            return False

    def echo(self, text: str) -> None:
        self._console.print()
        self._console.print(self._mark, style="accent", end="")
        self._console.print(printable(text))

    def show(self, events: Iterator[Event]) -> CompleteReply:
        self._console.print()
        stream, splitter = MarkdownStream(self._console), ThoughtSplitter()
        with ExitStack() as stack:
            stack.callback(self._close_gap, stream)
            waiting = stack.enter_context(
                self._console.status("", spinner="dots", spinner_style="quiet")
            )
            stack.callback(stream.finish)

            def show_parts(parts: Iterator[tuple[bool, str]]) -> None:
                for is_thought, text in parts:
                    waiting.stop()
                    stream.restyle("quiet" if is_thought else "none")
                    stream.feed(printable(text))

            reply = receive(events, lambda text: show_parts(splitter.feed(text)))
            show_parts(splitter.finish())
            return reply

    def _close_gap(self, stream: MarkdownStream) -> None:
        """Removes the empty line above a reply without text."""
        if not stream.has_shown:
            self._console.control(Control.move(y=-1))

    def statistics(self, reply: CompleteReply) -> None:
        if not self._quiet:
            self._console.print()
            self._console.print(statistics_line(reply, self._console.width), style="quiet")

    def note(self, text: str) -> None:
        if not self._quiet:
            self._console.print()
            self._console.print(_hanging(printable(text), self._console.width), style="quiet")

    def error(self, error: MrsError) -> None:
        self._console.print()
        self._console.print(one_line(str(error)), style="error")


def _hanging(text: str, columns: int) -> str:
    """`text` with long lines broken between words and continued with an indent."""
    return "\n".join(
        part
        for line in text.split("\n")
        for part in wrap(line, columns, subsequent_indent="    ", break_on_hyphens=False) or [""]
    )


def _can_encode(text: str, encoding: str | None) -> bool:
    try:
        text.encode(encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True


def _editor(environment: Environment, mark: str, vision: Callable[[], bool]) -> PromptSession[str]:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.output import ColorDepth
    from prompt_toolkit.styles import Style

    colour = environment.has_colour(environment.stdout)
    return PromptSession(
        [("class:mark", mark)],
        multiline=True,
        prompt_continuation=" " * len(mark),
        key_bindings=_keys(),
        history=_history(),
        style=Style.from_dict({"mark": "ansicyan bold"}),
        color_depth=None if colour else ColorDepth.DEPTH_1_BIT,
        completer=chat_completer(images=vision),
        complete_while_typing=False,
        tempfile_suffix=".md",
    )


def _prompt(editor: PromptSession[_Answer], default: str = "") -> _Answer:
    """What a person enters.

    SIGTERM then ends the program as always, but only after a turn of the editor's event loop: the
    loop and its callbacks lose exceptions that a signal raises amid their work.
    """
    if threading.current_thread() is not threading.main_thread():
        return editor.prompt(default=default)
    app, terminated = editor.app, False

    def leave() -> None:
        if terminated and app.future is not None and not app.future.done():
            app.exit(exception=EOFError)

    def terminate(signum: int, frame: FrameType | None) -> None:
        nonlocal terminated
        terminated = True
        if app.loop is not None:
            app.loop.call_soon_threadsafe(leave)

    follow_resizes(app)
    before = signal.signal(signal.SIGTERM, terminate)
    try:
        return editor.prompt(default=default, pre_run=leave)
    finally:
        signal.signal(signal.SIGTERM, before)
        if terminated:
            signal.raise_signal(signal.SIGTERM)


def _press(editor: PromptSession[str], typed: str) -> None:
    """Gives the editor keys to read before its own."""
    from prompt_toolkit.input.typeahead import store_typeahead
    from prompt_toolkit.input.vt100_parser import Vt100Parser
    from prompt_toolkit.key_binding.key_processor import KeyPress

    presses: list[KeyPress] = []
    parser = Vt100Parser(presses.append)
    parser.feed(typed)
    parser.flush()
    store_typeahead(editor.app.input, presses)


def _keys() -> KeyBindings:
    """Enter sends the message, but starts a new line within triple quotes; Alt-Enter and Ctrl-J
    always start a new line, and pasted lines stay one message. While Ctrl-R searches, Enter takes
    what it has found, to be changed or sent.

    Ctrl-X Ctrl-E opens the editor in `VISUAL` or `EDITOR`; Enter then sends what it saved. Ctrl-Z
    suspends the program, where there are jobs.
    """
    from prompt_toolkit.filters import is_searching
    from prompt_toolkit.key_binding import KeyBindings

    keys = KeyBindings()

    @keys.add("enter", filter=~is_searching)
    def _(event: Any) -> None:
        buffer = event.current_buffer
        if is_open(buffer.text):
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter", filter=~is_searching)
    @keys.add("c-j", filter=~is_searching)
    def _(event: Any) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add("c-x", "c-e")
    def _(event: Any) -> None:
        event.current_buffer.open_in_editor()

    @keys.add("c-z")
    def _(event: Any) -> None:
        event.app.suspend_to_background()

    return keys


def _history() -> History:
    """The messages of earlier chats, in a file that only its owner may read."""
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    try:
        path = state_folder() / "history"
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
        path.chmod(0o600)
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(path))
