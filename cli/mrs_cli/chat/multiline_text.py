"""Texts of several lines between two times three quotes."""

from __future__ import annotations

import re

# At the beginning of a message, or of what follows a command.
_OPEN = re.compile(r'\s*(?:[\\/][A-Za-z_-]+\s+)?"""(?!.*""")', re.DOTALL)
_WHOLE = re.compile(r'\s*"""\n?((?:(?!""").)*?)\n?(?:"""\s*)?', re.DOTALL)


def is_open(text: str) -> bool:
    """Whether further lines belong to `text`: it opens three quotes and does not close them."""
    return _OPEN.match(text) is not None


def unquoted(text: str) -> str:
    """What stands between the quotes; a text that does not begin and end with them is its own."""
    match = _WHOLE.fullmatch(text)
    return match[1] if match else text
