"""Text of several lines between triple quotes."""

from __future__ import annotations

import re

# At the beginning of a message, or of a command's argument.
_OPEN = re.compile(r'\s*(?:[\\/][A-Za-z_-]+\s+)?"""(?!.*""")', re.DOTALL)
_WHOLE = re.compile(r'\s*"""\n?((?:(?!""").)*?)\n?(?:"""\s*)?', re.DOTALL)


def is_open(text: str) -> bool:
    """Whether `text` opens triple quotes and does not close them, so that further lines follow."""
    return _OPEN.match(text) is not None


def unquoted(text: str) -> str:
    """The text between triple quotes, or `text` itself if it is not quoted."""
    match = _WHOLE.fullmatch(text)
    return match[1] if match else text
