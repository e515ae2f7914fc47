"""Encodes large responses in many short calls.

A call of msgspec keeps the interpreter until it returns, as `body_pieces` says of bodies: the
replies of others would wait for all log-probabilities of one, or for thousands of embeddings.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

#: JSON that one call makes: at most about a millisecond, however long a list is.
_PIECE_BYTES = 2**15
#: Longer lists are encoded apart.
_FEW_ITEMS = 16
#: Stands for such a list meanwhile: no JSON has this byte, which is escaped in strings.
_GAP = b"\0"


def json_pieces(body: Any) -> Iterator[bytes]:
    """The JSON of a body, as msgspec encodes it; vectors of numbers may be arrays."""
    long_lists: list[Sequence[Any]] = []
    frame = _encode(_with_gaps(body, long_lists))
    before, *others = frame.split(_GAP)
    yield before
    for items, after in zip(long_lists, others, strict=True):
        yield from _list_pieces(items)
        yield after


def whole_json(body: Any) -> bytes:
    """The same pieces in one."""
    return b"".join(json_pieces(body))


def _with_gaps(value: Any, long_lists: list[Sequence[Any]]) -> Any:
    """A value with a gap instead of each long list in it, which is added to `long_lists`."""
    if isinstance(value, msgspec.Struct):
        fields = {name: getattr(value, name) for name in value.__struct_fields__}
        with_gaps = {name: _with_gaps(field, long_lists) for name, field in fields.items()}
        changed = {name: new for name, new in with_gaps.items() if new is not fields[name]}
        return msgspec.structs.replace(value, **changed) if changed else value
    if isinstance(value, dict) and len(value) <= _FEW_ITEMS:
        with_gaps = {key: _with_gaps(each, long_lists) for key, each in value.items()}
        return with_gaps if any(with_gaps[key] is not value[key] for key in value) else value
    if not isinstance(value, list | tuple | array):
        return value
    if len(value) > _FEW_ITEMS:
        long_lists.append(value)
        return msgspec.Raw(_GAP)
    items = [_with_gaps(each, long_lists) for each in value]
    is_same = all(new is each for new, each in zip(items, value, strict=True))
    return value if is_same else items


def _list_pieces(items: Sequence[Any]) -> Iterator[bytes]:
    """The JSON of a list: a call encodes as many items as the one before makes likely to fit.

    An item alone, as is the first, may have long lists itself.
    """
    start, count, opening = 0, 1, b"["
    while start < len(items):
        yield opening
        some = items[start : start + count]
        pieces = list(json_pieces(some[0])) if count == 1 else [_encode(some)[1:-1]]
        yield from pieces
        opening = b","
        start += count
        count = max(min(4 * count, count * _PIECE_BYTES // sum(map(len, pieces))), 1)
    yield b"]"


def _listed(value: Any) -> Any:
    """What msgspec cannot encode itself. Raises TypeError."""
    if isinstance(value, array):
        return value.tolist()
    raise TypeError(f"a response has a value of {type(value)}")


_encode = msgspec.json.Encoder(enc_hook=_listed).encode
