"""The texts of a request by which its prompt begins like those of others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

#: The fields of all interfaces that make a prompt, in the order in which templates write them.
_FIELDS = (
    "model", "previous_response_id", "tools", "functions", "system", "instructions", "messages",
    "prompt", "input", "query", "documents",
)  # fmt: skip


def prompt_texts(body: bytes) -> Iterator[str]:
    """What the body of a request says, a text for each message; nothing of one that is no object.

    Settings that do not change the prompt are left out, and so is the order of fields.
    """
    try:
        request = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return
    if not isinstance(request, dict):
        return
    for name in _FIELDS:
        value = request.get(name)
        for each in value if isinstance(value, list) else [value]:
            if each is not None:
                yield _text_of(each)


def _text_of(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value, order="sorted").decode()
