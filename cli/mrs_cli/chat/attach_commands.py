"""Commands that attach files to the next message."""

from __future__ import annotations

from mrs.errors import ContextFull, UsageError
from mrs_cli.chat.attachments import Attachments, described, given_paths, read_attachment
from mrs_cli.chat.chat_state import ChatState
from mrs_cli.chat.question import Question


def attach(chat: ChatState, text: str) -> str:
    """Adds files to the next message, all or none of them."""
    attached, vision = chat.attached, chat.session.vision is not None
    if text:
        more = Attachments([*attached.files], [*attached.images])
        for path in given_paths(text):
            more.add(read_attachment(path, vision=vision))
        _require_room(chat, more)
        chat.attached = attached = more
    if not attached:
        return "nothing is attached; \\attach FILE adds a text, a PDF file or an image"
    lines = described(attached.files, attached.images).split("\n")
    listed = [f"{number} {line}" for number, line in enumerate(lines, 1)]
    return "\n".join([*listed, "goes with the next message"])


def _require_room(chat: ChatState, attached: Attachments) -> None:
    """Raises ContextFull if the files alone exceed the context."""
    model = chat.session.model
    tokens = chat.session.tokens_of(Question("", files=tuple(attached.files)))
    if tokens >= model.context_tokens:
        raise ContextFull(tokens, model.context_tokens)


def detach(chat: ChatState, number: str) -> str:
    files, images = chat.attached.files, chat.attached.images
    if not chat.attached:
        return "nothing is attached"
    if not number:
        chat.attached = Attachments()
        return "nothing is attached any more"
    count = len(files) + len(images)
    if not number.isdecimal() or not 1 <= int(number[:9]) <= count:
        raise UsageError(f"there is no attached file {number}", hint="\\attach lists them")
    index = int(number) - 1
    if index < len(files):
        return f"detached: {files.pop(index).name}"
    return f"detached: {images.pop(index - len(files)).name}"
