"""Large responses are encoded and sent in pieces: the same JSON, and nobody else waits for long."""

from __future__ import annotations

import asyncio
import random
from array import array
from typing import Any

import msgspec
import pytest
from starlette.types import Message

from mrs.server.http import json_pieces as module
from mrs.server.http.json_pieces import json_pieces, whole_json
from mrs.server.http.wire import Raw, raw_json, send_body

TEXTS = ("a", "", 'é\n"\\,:{[]}', "\0", "\x01\u2028", "x" * 100)


class Tagged(msgspec.Struct, tag="kind", tag_field="type", omit_defaults=True, kw_only=True):
    """As bodies are: with a tag, a field that has another name, and ones that are left out."""

    items: Any = None
    other: Any = msgspec.UNSET
    renamed: Any = msgspec.field(default=None, name="re:named")


def value_of(chance: random.Random, depth: int) -> Any:
    kind = chance.choice(("list", "tuple", "dict", "struct")) if depth else "text"
    most = chance.choice((0, 3, 3, 100))
    if kind == "list":
        return [value_of(chance, depth - 1) for _ in range(most)]
    if kind == "tuple":
        return tuple(value_of(chance, depth - 1) for _ in range(most))
    if kind == "dict":
        return {f"{chance.choice(TEXTS)}{at}": value_of(chance, depth - 1) for at in range(most)}
    if kind == "struct":
        items, renamed = value_of(chance, depth - 1), value_of(chance, depth - 1)
        return Tagged(items=items, renamed=renamed, other=chance.choice((1, msgspec.UNSET)))
    return chance.choice([*TEXTS, 1, -1.5e3, None, True, 0.1])


@pytest.mark.parametrize("piece", [1, 100, 2**15])
def test_pieces_are_the_json_that_msgspec_makes(
    monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    monkeypatch.setattr(module, "_PIECE_BYTES", piece)
    chance = random.Random(piece)
    for _ in range(30):
        value = value_of(chance, 3)
        assert whole_json(value) == msgspec.json.encode(value)


def test_vectors_may_be_arrays() -> None:
    for length in (0, 3, 16, 17, 5000):
        values = [random.Random(at).gauss() for at in range(length)]
        body = {"few": array("d", values), "many": [array("d", values)] * 100}
        assert whole_json(body) == msgspec.json.encode({"few": values, "many": [values] * 100})
    with pytest.raises(TypeError):
        whole_json([object()])


@pytest.mark.parametrize(
    "body",
    [
        {"data": [Tagged(items=array("d", [0.1] * 300)) for _ in range(2000)]},
        Tagged(items=[Tagged(items=[{"token": "a", "top": [0.25] * 20}] * 3000)]),
        [{"a": [1] * 100_000}],
        {"texts": [["a"]] + [["b" * 10_000]] * 50},
        {"choices": [Tagged(items=[{"token": "a"}] * 3000)] * 40},
    ],
)
def test_no_call_encodes_much(monkeypatch: pytest.MonkeyPatch, body: Any) -> None:
    encode, sizes = module._encode, list[int]()

    def counted(value: Any) -> bytes:
        encoded = encode(value)
        sizes.append(len(encoded))
        return encoded

    monkeypatch.setattr(module, "_encode", counted)
    whole = b"".join(json_pieces(body))
    assert len(whole) > 2**17
    assert max(sizes) <= 2 * 2**15
    assert len(sizes) < len(whole) / 2**11


def sent(body: Any) -> tuple[list[Message], int]:
    """The messages of a response, and how often another task had its turn meanwhile."""
    messages, turns = list[Message](), 0

    async def send(message: Message) -> None:
        messages.append(message)

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def both() -> None:
        task = asyncio.ensure_future(other())
        await send_body(send, body)
        task.cancel()

    asyncio.run(both())
    return messages, turns


@pytest.mark.parametrize("length", [0, 1, 2**16, 2**16 + 1, 10**6])
@pytest.mark.parametrize("is_whole", [True, False])
def test_long_bodies_are_sent_in_parts(length: int, is_whole: bool) -> None:
    content = random.Random(0).randbytes(length)
    pieces = [content[start : start + 999] for start in range(0, length, 999)]
    (head, *parts), turns = sent(Raw(content if is_whole else pieces))
    assert dict(head["headers"])[b"content-length"] == str(length).encode()
    assert b"".join(each["body"] for each in parts) == content
    assert [each["more_body"] for each in parts] == [True] * (len(parts) - 1) + [False]
    assert max(len(each["body"]) for each in parts) < 2 * 2**16
    assert len(parts) <= 1 + length // 2**16
    assert turns >= len(parts) - 1


def test_a_short_body_is_one_message_after_the_head() -> None:
    (_, part), _ = sent(raw_json({"choices": [1] * 100}))
    assert part["body"] == b'{"choices":[' + b",".join([b"1"] * 100) + b"]}"
