"""Messages of a chat: they keep the files that a person attached apart from what was typed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mrs.request import IMAGE_MARK, Message, text_of
from mrs_cli.chat.chat_images import without_images
from mrs_cli.render.safe_text import one_line


@dataclass(frozen=True)
class TextFile:
    """The text of an attached file; `name` has no folders. A PDF file has `pages`."""

    name: str
    text: str
    pages: int = 0


class ChatMessage(Message, total=False):
    """A message with the text files that go with it, or of a reply with the model that gave it.

    The fields are absent without any.
    """

    files: Sequence[TextFile]
    model: str


def for_model(message: ChatMessage, *, vision: bool) -> Message:
    """The message as a model gets it: its files are text, in front of what was typed.

    Who gave a reply is left out, and without `vision` the images, too.
    """
    shown: ChatMessage = message.copy()
    shown.pop("model", None)
    if files := shown.pop("files", ()):
        shown["content"] = "\n\n".join(filter(None, [*map(_fenced, files), text_of(message)]))
    return shown if vision else without_images(shown)


def _fenced(file: TextFile) -> str:
    """The name of a file, and its text as a block of code whose fence is longer than any in it.

    The chat page of the server shows a model the same.
    """
    text = file.text.replace(IMAGE_MARK, "").removesuffix("\n")
    longest = max(map(len, re.findall("`{2,}", text)), default=2)
    fence = "`" * (longest + 1)
    suffix = file.name.rpartition(".")[2] if "." in file.name and not file.pages else ""
    info = suffix if suffix.isalnum() else ""
    return f"{one_line(file.name)}:\n{fence}{info}\n{text}\n{fence}"


def turn_starts(messages: Sequence[Message]) -> list[int]:
    """The indices of the user's messages: each begins a turn, which ends with a reply."""
    return [index for index, message in enumerate(messages) if message["role"] == "user"]


def first_text(messages: Iterable[Message]) -> str:
    """The first thing that a person typed, in one line."""
    typed = (text_of(each).replace(IMAGE_MARK, "") for each in messages if each["role"] == "user")
    return one_line(next(typed, ""))


def shortened(text: str, characters: int = 60) -> str:
    """`text` in one line of so many characters at most."""
    line = one_line(text)
    return line if len(line) <= characters else f"{line[: characters - 1]}\u2026"
