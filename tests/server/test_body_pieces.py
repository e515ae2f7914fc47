"""Large bodies are decoded in pieces: to the same values, and no other thread waits for long."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from mrs.server.http import body_pieces
from mrs.server.http.body_pieces import NotAnObject, convert_object, decode_object
from mrs.server.schemas.chat_request import ChatRequest

MESSAGE = {"role": "user", "content": [{"type": "text", "text": "hello"}]}
TEXTS = ("a", 'é\n"\\,:{[]}' * 5, "😀\\", '\\"', "\\\\", '\\\\"x', "", "\\u0022")


def value_of(chance: random.Random, depth: int) -> Any:
    kind = chance.choice(("text", "text", "list", "object")) if depth else "text"
    if kind == "list":
        return [value_of(chance, depth - 1) for _ in range(chance.randrange(7))]
    if kind == "object":
        return {
            chance.choice(TEXTS) + str(index): value_of(chance, depth - 1)
            for index in range(chance.randrange(6))
        }
    return chance.choice([*TEXTS, 1, -1.5e3, None, True])


def body_of(chance: random.Random) -> bytes:
    value = {str(index): value_of(chance, 4) for index in range(4)}
    text = json.dumps(value, ensure_ascii=chance.random() < 0.5, indent=chance.choice((None, 1)))
    return text.encode()


def outcome(decode: Callable[[Any], Any], body: bytes) -> Any:
    """The object in a body, or that there is none."""
    try:
        value = decode(memoryview(body))
    except (msgspec.DecodeError, UnicodeDecodeError, NotAnObject):
        return None
    return value if isinstance(value, dict) else None


@pytest.mark.parametrize(("piece", "part"), [(1, 1), (5, 8), (60, 97), (2**15, 2**18)])
def test_pieces_make_the_same_object(
    monkeypatch: pytest.MonkeyPatch, piece: int, part: int
) -> None:
    monkeypatch.setattr(body_pieces, "_PIECE_BYTES", piece)
    monkeypatch.setattr(body_pieces, "_LOOKED_AT_BYTES", part)
    chance, damaged = random.Random(piece), 0
    for _ in range(20):
        body = body_of(chance)
        found = decode_object(memoryview(body))
        assert found == json.loads(body)
        assert list(found) == list(json.loads(body))
        other = bytearray(body)
        other[chance.randrange(len(other))] = chance.randrange(256)
        expected = outcome(msgspec.json.decode, bytes(other))
        assert outcome(decode_object, bytes(other)) == expected, bytes(other)
        damaged += expected is None
    assert damaged > 5


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"[1]" + b" " * 2**16, NotAnObject),
        (b'"' + b"a" * 2**16 + b'"', NotAnObject),
        (b"null" + b" " * 2**16, NotAnObject),
        (b" " * 2**16, msgspec.DecodeError),
        (b"{}" + b" " * 2**16 + b"x", msgspec.DecodeError),
        (b'{"a":' + b"[" * 2**16 + b"}", RecursionError),
        (b'{"a":"' + b"a" * 2**16 + b'\xff"}', UnicodeDecodeError),
    ],
)
def test_what_is_no_object_is_an_error(body: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        decode_object(memoryview(body))


def test_the_place_of_a_wrong_item_is_that_in_the_whole_list() -> None:
    wrong: list[Any] = [MESSAGE] * 3000
    for item in ({"role": 1}, 1):
        given = {"messages": [*wrong, item, *wrong]}
        errors = []
        for convert in (msgspec.convert, convert_object):
            with pytest.raises(msgspec.ValidationError) as raised:
                convert(given, ChatRequest)
            errors.append(str(raised.value))
        assert errors[0] == errors[1]
        assert "messages[3000]" in errors[0]


def test_a_long_list_is_converted_like_a_short_one() -> None:
    given = {"messages": [MESSAGE] * 3000, "max_tokens": 4}
    assert convert_object(given, ChatRequest) == msgspec.convert(given, ChatRequest)
    with pytest.raises(msgspec.ValidationError, match=r"length <= 16384 - at `\$\.messages`"):
        convert_object({"messages": [MESSAGE] * 16_385}, ChatRequest)


BODIES: dict[str, bytes] = {
    "keys": b'{"x":{%b}}' % b",".join(b'"k%d":1' % number for number in range(2**17)),
    "objects": b'{"x":[%b]}' % b",".join([b'{"a":1}'] * 2**16),
    "lists": b'{"x":[%b]}' % b",".join([b"[[1]]"] * 2**16),
}


@pytest.mark.parametrize("name", BODIES)
def test_no_call_decodes_much_of_a_large_body(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """But the one that makes nothing of it. A call keeps the interpreter until it returns."""
    body, decode, sizes = BODIES[name], msgspec.json.decode, []

    def decoded(text: Any, **how: Any) -> Any:
        if how.get("type") is not msgspec.Raw:
            sizes.append(len(text))
        return decode(text, **how)

    monkeypatch.setattr(msgspec.json, "decode", decoded)
    assert decode_object(memoryview(body)) == decode(body)
    assert max(sizes) <= body_pieces._PIECE_BYTES + len("{}")


def test_no_call_converts_much_of_a_long_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    given, convert, counts = {"messages": [MESSAGE] * 16_384}, msgspec.convert, []

    def converted(value: Any, kind: Any, **_: Any) -> Any:
        items = value if isinstance(value, list) else value["messages"]
        counts.append(sum(isinstance(each, dict) for each in items))
        return convert(value, kind)

    monkeypatch.setattr(msgspec, "convert", converted)
    assert convert_object(given, ChatRequest) == convert(given, ChatRequest)
    assert max(counts) <= body_pieces._PIECE_ITEMS
