"""Completion in a chat: commands, files, names of settings, and paths of images in messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from re import DOTALL, fullmatch
from typing import TYPE_CHECKING

from mrs_cli.chat.chat_settings import setting_names
from mrs_cli.chat.command_table import COMMANDS, find_command
from mrs_cli.chat.image_paths import completed, incomplete_path, is_image_path
from mrs_cli.chat.session_store import MAX_LISTED, listed_sessions
from mrs_cli.parsing.shell_completion import all_models

if TYPE_CHECKING:
    from prompt_toolkit.completion import CompleteEvent, Completer, Completion
    from prompt_toolkit.document import Document


def chat_completer(*, images: Callable[[], bool]) -> Completer:
    """Completes commands and their arguments, and while `images` paths of images in messages."""
    from prompt_toolkit.completion import Completer

    class ChatCompleter(Completer):
        def get_completions(
            self, document: Document, complete_event: CompleteEvent
        ) -> Iterator[Completion]:
            text = document.text_before_cursor
            typed = fullmatch(r"([\\/])([A-Za-z]*)( +)?(.*)", text, DOTALL)
            if typed is not None and not (images() and typed[1] == "/" and "/" in text[1:]):
                yield from _in_command(*typed.groups())
            elif images():
                yield from _images(text)

    return ChatCompleter()


def _in_command(mark: str, name: str, space: str | None, argument: str) -> Iterator[Completion]:
    from prompt_toolkit.completion import Completion

    if space is None:
        for command in COMMANDS:
            if not argument and command.name.startswith(name.lower()):
                yield Completion(
                    mark + command.name, start_position=-len(name) - 1, display_meta=command.help
                )
        return
    found = find_command(name.lower())
    takes = found.argument if found else ""
    if takes == "FILE" or (takes == "SESSION|FILE" and "/" in argument):
        for path, shown in _paths(argument):
            yield Completion(path, start_position=-len(argument), display=shown)
    elif takes == "[FILE...]":
        yield from _files(argument)
    elif takes == "[MODEL]":
        for model in all_models(argument):
            yield Completion(model, start_position=-len(argument))
    elif takes.startswith("SESSION"):
        for listed in islice(listed_sessions(), MAX_LISTED):
            if listed.title.casefold().startswith(argument.casefold()):
                yield Completion(listed.title, start_position=-len(argument))
    elif takes == "[NAME VALUE]":
        for setting in (*setting_names(), "verbose", "quiet"):
            if setting.startswith(argument.replace("_", "-")):
                yield Completion(setting, start_position=-len(argument))


def _images(text: str) -> Iterator[Completion]:
    """Folders and images for the last word of a message."""
    if incomplete_path(text).name:
        yield from _files(text, is_image_path)


def _files(text: str, wanted: Callable[[str], bool] = lambda name: True) -> Iterator[Completion]:
    """Folders and files for the last word, which may be quoted or have escaped spaces."""
    from prompt_toolkit.completion import Completion

    last = incomplete_path(text)
    for path, shown in _paths(last.name, wanted):
        spelled = completed(last, path, is_file=not shown.endswith("/"))
        yield Completion(spelled, start_position=-len(last.typed), display=shown)


def _paths(
    incomplete: str, wanted: Callable[[str], bool] = lambda name: True
) -> Iterator[tuple[str, str]]:
    """The paths that begin with `incomplete`, and their names to show; folders end with a slash."""
    start, slash, name = incomplete.rpartition("/")
    try:
        entries = sorted(Path(f"{start}{slash}" or ".").expanduser().iterdir())
    except (OSError, RuntimeError, ValueError):  # an unknown user's ~name, a zero byte
        return
    for entry in entries:
        hidden = entry.name.startswith(".") and not name.startswith(".")
        if entry.name.startswith(name) and not hidden and entry.name.isprintable():
            end = "/" if entry.is_dir() else ""
            if end or wanted(entry.name):
                yield f"{start}{slash}{entry.name}{end}", f"{entry.name}{end}"
