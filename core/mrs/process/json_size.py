"""The size of JSON that strangers may have sent."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

#: `json.dumps` writes so much in a moment; it keeps the interpreter from other threads meanwhile.
_MOST_AT_ONCE = 2**16


def json_characters(value: Any) -> int:
    """How long a value is as `json.dumps` writes it; other threads do not wait for a long one.

    Raises ValueError, TypeError and RecursionError as that does.
    """
    import msgspec

    with suppress(Exception):  # what msgspec does not know
        if len(msgspec.json.encode(value)) > _MOST_AT_ONCE:
            return sum(map(len, json.JSONEncoder().iterencode(value)))
    return len(json.dumps(value))
