"""What Tab offers in a chat: commands, files, and the names of settings."""

from __future__ import annotations

from collections.abc import Iterator
from re import DOTALL, fullmatch
from typing import TYPE_CHECKING

from mrs_cli.chat_settings import setting_names
from mrs_cli.commands import COMMANDS

if TYPE_CHECKING:
    from prompt_toolkit.completion import CompleteEvent, Completer, Completion
    from prompt_toolkit.document import Document


def chat_completer() -> Completer:
    """Completes a line that begins with a command; messages stay as they are."""
    from prompt_toolkit.completion import Completer, Completion, PathCompleter
    from prompt_toolkit.document import Document

    files = PathCompleter(expanduser=True)

    class ChatCompleter(Completer):
        def get_completions(
            self, document: Document, complete_event: CompleteEvent
        ) -> Iterator[Completion]:
            typed = fullmatch(r"([\\/])([A-Za-z]*)( +)?(.*)", document.text_before_cursor, DOTALL)
            if typed is None:
                return
            mark, name, space, argument = typed.groups()
            if space is None:
                if not argument:
                    for command in COMMANDS:
                        if command.name.startswith(name.lower()):
                            yield Completion(
                                mark + command.name,
                                start_position=-len(name) - 1,
                                display_meta=command.help,
                            )
                return
            takes = {command.name: command.argument for command in COMMANDS}.get(name.lower())
            if takes == "FILE":
                yield from files.get_completions(Document(argument), complete_event)
            elif takes == "[NAME VALUE]":
                for setting in setting_names():
                    if setting.startswith(argument.replace("_", "-")):
                        yield Completion(setting, start_position=-len(argument))

    return ChatCompleter()
