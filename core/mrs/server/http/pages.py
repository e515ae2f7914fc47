"""Parts of lists, as the interfaces of OpenAI and Anthropic ask for them in a query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

from mrs.server.http.errors import ApiError

#: The entries of a part if the query does not say how many, as both interfaces have it.
_DEFAULT_LIMIT = 20
Entry = TypeVar("Entry")


class Page(NamedTuple, Generic[Entry]):
    """Some entries of a list in a row, and what both interfaces say of them."""

    data: Sequence[Entry]
    first_id: str | None
    last_id: str | None
    has_more: bool


def page_of(entries: Sequence[Entry], ids: Sequence[str], query: Mapping[str, str]) -> Page[Entry]:
    """At most `limit` entries, after the one that `after` or `after_id` names, or before the one
    that `before` or `before_id` names. Raises ApiError."""
    limit = _limit(query)
    after = query.get("after", query.get("after_id"))
    before = query.get("before", query.get("before_id"))
    if before is not None:
        end = _place(ids, before, "before")
        start = max(end - limit, 0)
    else:
        start = 0 if after is None else _place(ids, after, "after") + 1
        end = min(start + limit, len(ids))
    part = ids[start:end]
    first_id, last_id = (part[0], part[-1]) if part else (None, None)
    return Page(entries[start:end], first_id, last_id, end < len(ids))


def _limit(query: Mapping[str, str]) -> int:
    text = query.get("limit", str(_DEFAULT_LIMIT))
    if not (text.isascii() and text.isdecimal() and 1 <= int(text[:5]) <= 1000):
        raise ApiError(400, "limit is no number from 1 to 1000", "limit", "invalid_value")
    return int(text)


def _place(ids: Sequence[str], wanted: str, field: str) -> int:
    if wanted not in ids:
        raise ApiError(400, f"{field} names no entry: {wanted[:100]!r}", field, "invalid_value")
    return ids.index(wanted)
