"""Files that a person attaches to a message: texts, PDF files and images."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mrs.errors import NotReadable, UsageError
from mrs.process.encodings import other_encoding
from mrs.process.files import read_at_most
from mrs.request import Media
from mrs_cli.chat.chat_images import described as images_described
from mrs_cli.chat.chat_images import read_image
from mrs_cli.chat.chat_message import TextFile
from mrs_cli.chat.image_paths import is_image_path
from mrs_cli.chat.saved_chat import path_of
from mrs_cli.render.safe_text import one_line

#: A larger text exceeds every context.
MAX_TEXT_BYTES = 16 * 2**20
#: A path at the beginning of a message, as terminals paste what is dragged to them.
_LEADING_PATH = re.compile(
    r"""\s*(?:"(?P<double>[^"\n]+)"|'(?P<single>[^'\n]+)'|(?P<bare>(?:\\[^\n]|[^\s\\])+))(?=\s|$)"""
)
_IS_PATH = re.compile(r"(?:file://)?(?:/|~/|\.{1,2}/)|[A-Za-z]:[\\/]|\\\\")
_LONGEST_PATH = 4096


@dataclass
class Attachments:
    """What goes with the next message."""

    files: list[TextFile] = field(default_factory=list)
    images: list[Media] = field(default_factory=list)

    def add(self, attached: TextFile | Media) -> None:
        if isinstance(attached, TextFile):
            self.files.append(attached)
        else:
            self.images.append(attached)

    def __bool__(self) -> bool:
        return bool(self.files or self.images)


def read_attachment(name: str, *, vision: bool) -> TextFile | Media:
    """The file at a path, of which images need `vision`. Raises MrsError."""
    if is_image_path(name):
        if not vision:
            raise UsageError(f"{name} is an image", hint="this needs a vision model")
        return read_image(name)
    return read_file(name)


def read_file(name: str) -> TextFile:
    """The text of a text file or a PDF file. Raises NotReadable, UsageError and Unsupported."""
    from mrs.text import pdf_text

    path = path_of(name)
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise NotReadable("only files can be attached", where=name)
        with path.open("rb") as file:
            is_pdf = file.read(len(pdf_text.MARK)) == pdf_text.MARK
        content = read_at_most(path, pdf_text.MAX_FILE_BYTES if is_pdf else MAX_TEXT_BYTES)
    except OSError as error:
        raise NotReadable(
            "the file cannot be attached", where=f"{name}: {error.strerror}"
        ) from error
    if is_pdf:
        text, pages = pdf_text.pdf_text(content, name)
        return TextFile(path.name, text, pages)
    return TextFile(path.name, _text(content, name))


def _text(content: bytes, name: str) -> str:
    """UTF-8 text with the newlines of Unix. Raises NotReadable."""
    if encoding := other_encoding(content):
        raise NotReadable(f"the file is {encoding}", where=name, hint="save it as UTF-8")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise NotReadable(
            "the file is not text", where=name, hint="attach text in UTF-8, a PDF file or an image"
        )
    return text.replace("\r\n", "\n")


def described(files: Sequence[TextFile], images: Sequence[Media] = ()) -> str:
    """A line for each file and image."""
    lines = [f"\u25a4 {one_line(each.name)} {_size(each)}" for each in files]
    return "\n".join(filter(None, [*lines, images_described(images)]))


def _size(file: TextFile) -> str:
    characters = f"{len(file.text):,} characters"
    if not file.pages:
        return characters
    return f"{file.pages} {'page' if file.pages == 1 else 'pages'}, {characters}"


def leading_files(text: str) -> tuple[list[str], str]:
    """The paths of files with which a message begins, and the rest of it.

    Images are left to the message.
    """
    paths, rest = [], text
    while match := _LEADING_PATH.match(rest[:_LONGEST_PATH]):
        path = match["double"] or match["single"] or _unescaped(match["bare"])
        if not _IS_PATH.match(path) or is_image_path(path):
            break
        path = path.removeprefix("file://")
        if not os.path.isfile(os.path.expanduser(path)):  # noqa: PTH111, PTH113 - any text may come
            break
        paths.append(path)
        rest = rest[match.end() :]
    return paths, rest.strip() if paths else text


def _unescaped(word: str) -> str:
    """A word without the backslashes that a terminal puts before special characters."""
    return word if os.name == "nt" else re.sub(r"\\(.)", r"\1", word)


def given_paths(text: str) -> list[str]:
    """The paths that a person typed: quoted, escaped, or one with spaces. Raises UsageError."""
    import shlex

    if Path(text).expanduser().exists():
        return [text]
    try:
        return shlex.split(text, posix=os.name != "nt")
    except ValueError as error:
        raise UsageError("a quote is not closed", where=text) from error
