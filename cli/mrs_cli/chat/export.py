"""Sessions as Markdown, for people to read."""

from __future__ import annotations

from pathlib import Path

from mrs.media.image_source import image_name
from mrs.request import IMAGE_MARK, text_of
from mrs_cli.chat.chat_message import ChatMessage
from mrs_cli.chat.saved_chat import SavedChat, path_of, save
from mrs_cli.render.own_files import replace_own_file
from mrs_cli.render.safe_text import one_line, printable


def export(chat: SavedChat, name: str) -> Path:
    """Writes the chat as Markdown if the name ends in .md, or in the form that can be loaded.

    Returns the path, of a file that only the owner may read. Raises UsageError.
    """
    path = path_of(name)
    if path.suffix.lower() != ".md":
        return save(chat, name)
    replace_own_file(path, _markdown(chat), _END, "a chat")
    return path


#: What the Markdown of a chat ends with, so that no other file is replaced.
_END = "<!-- a chat with mrs -->\n"


def _markdown(chat: SavedChat) -> str:
    parts = [f"# {one_line(chat.title)}"]
    if chat.system is not None:
        parts += ["## System prompt", chat.system]
    for message in chat.turns:
        parts += _parts(message)
    return "\n\n".join(filter(None, [*map(printable, parts), _END]))


def _parts(message: ChatMessage) -> list[str]:
    """A message: its heading, what is attached, the thought, the text, and calls of tools."""
    text = text_of(message).replace(IMAGE_MARK, "").strip()
    if message["role"] == "tool":
        return [f"*Result of {message.get('name', '')}:*", _indented(text)]
    heading = "You" if message["role"] == "user" else one_line(message.get("model", "Model"))
    images = [f"*(image {one_line(image_name(each.name))})*" for each in message.get("images", ())]
    files = [f"*(file {one_line(each.name)})*" for each in message.get("files", ())]
    thought = message.get("reasoning", "")
    quoted = "\n".join(f"> {line}" for line in thought.strip().split("\n")) if thought else ""
    calls = [
        f"*Call of {one_line(each['name'])}:*\n\n{_indented(each['arguments'])}"
        for each in message.get("tool_calls", ())
    ]
    return [f"## {heading}", *images, *files, quoted, text, *calls]


def _indented(text: str) -> str:
    """A block of code, whatever is in it."""
    return "\n".join(f"    {line}" for line in text.split("\n"))
