"""Bodies that are no JSON, or JSON that costs much to read, and values of wrong types."""

from __future__ import annotations

import codecs
import gzip
import json
import random
from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec

from mrs.server.routes.table import ROUTES
from support.hostile.request import MB, HostileRequest, Maker, asking

_CHAT = b'{"messages": "Hi", "max_tokens": 4, '
_DEPTHS = (100, 5000, 100_000, 3 * MB)
_COUNTS = (100, 10_000, MB)

_WRONG: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2**31, 2**63, 2**64, 10**400, 1.5, -0.0, 1e308, 5e-324, "", "a", "\0",
    "\ud800", "9" * 1000, [], [[]], [None] * 1000, ["a", 1, None], [[1]] * 100, {}, {"": {}},
    {"type": "x"}, {"a": [{}] * 100}, {"type": ["text"]}, [{"role": "user", "content": [[]]}],
    [{"role": "tool", "content": None}], [{"role": "user", "content": [{"type": "text"}]}],
)  # fmt: skip
#: Paths that would take the model away from the neighbour if they were asked well.
_CHANGES_MODELS = ("/v1/models/unload", "/v1/models/reload", "/re_isq")


def _nested(chance: random.Random) -> bytes:
    depth = chance.choice(_DEPTHS)
    opened, closed = chance.choice([(b"[", b"]"), (b'{"a":', b"}"), (b'[{"a":[', b"]}]")])
    ends = chance.choice([closed * depth, b"", closed])
    field = chance.choice([b'"messages"', b'"metadata"', b'"x"', b'"response_format"', b'"tools"'])
    return b'{"messages": "Hi", %s: ' % field + opened * depth + b"1" + ends + b"}"


def _number(chance: random.Random) -> bytes:
    digits = chance.choice([b"9", b"1234567890"]) * chance.choice([30, 5000, MB])
    number = chance.choice([b"%s", b"-%s", b"0.%s", b"1e%s", b"1E-%s", b"0.%se99"]) % digits
    field = chance.choice([b'"seed"', b'"max_tokens"', b'"temperature"', b'"x"', b'"logit_bias"'])
    return b'{"messages": "Hi", %s: %s}' % (field, number)


def _no_number(chance: random.Random) -> bytes:
    word = chance.choice([b"NaN", b"Infinity", b"-Infinity", b"0x10", b"01", b"1.", b".5", b"+1"])
    return _CHAT + b'"temperature": %s}' % word


def _many_keys(chance: random.Random) -> bytes:
    count = chance.choice(_COUNTS)
    keys = ",".join(f'"k{index}":{index}' for index in range(count))
    place = chance.choice(["%s", '"metadata": {%s}', '"x": {%s}', '"chat_template_kwargs": {%s}'])
    return _CHAT + (place % keys).encode() + b"}"


def _many_items(chance: random.Random) -> bytes:
    item = chance.choice([b"1", b"[]", b"{}", b'""', b"null", b'{"type":"text","text":"a"}'])
    field = chance.choice([b'"stop"', b'"x"', b'"messages"', b'"tools"', b'"stop_token_ids"'])
    items = b",".join([item] * chance.choice(_COUNTS))
    return b'{"messages": "Hi", "max_tokens": 4, %s: [%s]}' % (field, items)


def _same_key(chance: random.Random) -> bytes:
    return _CHAT + b'"seed": 1, ' * chance.choice(_COUNTS) + b'"stream": false}'


def _long_key(chance: random.Random) -> bytes:
    key = chance.choice([b"a", b"\\u0000", b"\\ud83d", "é".encode(), b" "])
    return _CHAT + b'"%s": 1}' % (key * chance.choice(_COUNTS))


def _escapes(chance: random.Random) -> bytes:
    escape = chance.choice([b"\\u0000", b"\\ud800", b"\\udc00\\ud800", b"\\\\", b"\\/", b"\\u0061"])
    return b'{"messages": "%s", "max_tokens": 4}' % (escape * chance.choice((10, 10_000, MB)))


def _bad_escape(chance: random.Random) -> bytes:
    return b'{"messages": "%s"}' % chance.choice([b"\\x", b"\\u12", b"\\", b"\x01", b"\n"])


def _bad_utf8(chance: random.Random) -> bytes:
    bad = chance.choice([b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82"])
    return b'{"messages": "%s", "max_tokens": 4}' % (bad * chance.choice((1, 100_000)))


def _encoded(chance: random.Random) -> bytes:
    text = '{"messages": "' + "é" * chance.choice((1, MB)) + '", "max_tokens": 4}'
    name = chance.choice(["utf-16", "utf-16-be", "utf-32", "latin-1", "utf-7", "cp037"])
    return text.encode(name)


def _marked(chance: random.Random) -> bytes:
    return codecs.BOM_UTF8 * chance.choice((1, 2, 100_000)) + _CHAT + b'"seed": 1}'


def _truncated(chance: random.Random) -> bytes:
    whole = json.dumps({"messages": [{"role": "user", "content": "Hi" * 1000}], "n": 2}).encode()
    return whole[: chance.randrange(len(whole))]


def _trailing(chance: random.Random) -> bytes:
    return _CHAT + b'"seed": 1}' + chance.choice([b"}", b"x", b"\0", b"{}", b" " * 5 * MB + b"1"])


def _nothing(chance: random.Random) -> bytes:
    return chance.choice([b"", b" " * 5 * MB, b"\0" * MB, b"null", b"[]", b'"a"', b"1", b"{}"])


def _noise(chance: random.Random) -> bytes:
    return chance.randbytes(chance.choice((10, 10_000, 5 * MB)))


def _zipped(chance: random.Random) -> HostileRequest:
    """A body that would be a thousand times as large."""
    body = gzip.compress(b" " * chance.choice((100, 50 * MB)), 1)
    encoding = chance.choice(["gzip", "deflate", "br", "gzip, gzip", "identity", "x"])
    headers = ("content-type: application/json", f"content-encoding: {encoding}")
    return HostileRequest(f"JSON: {encoding}", "/v1/chat/completions", body, headers=headers)


def _other_type(chance: random.Random) -> HostileRequest:
    kinds = ("multipart/form-data; boundary=a", "text/plain", "application/xml", "a" * 5000, "")
    kind = chance.choice(kinds)
    return HostileRequest(
        f"JSON: content-type {kind[:30]}",
        chance.choice(_paths()),
        b"--a\r\n" * 10_000,
        headers=(f"content-type: {kind}",),
    )


@cache
def _paths() -> list[str]:
    return [
        each.path
        for each in ROUTES
        if each.request is not None and each.path not in _CHANGES_MODELS
    ]


@cache
def _fields(path: str) -> list[str]:
    (body_type,) = {each.request for each in ROUTES if each.path == path and each.request}
    return [field.encode_name for field in msgspec.structs.fields(body_type)]


_NEEDED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": "Hi", "max_tokens": 4},
    "/v1/completions": {"prompt": "Hi", "max_tokens": 4},
    "/v1/messages": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "Hi"}]},
    "/v1/responses": {"input": "Hi", "max_output_tokens": 4},
    "/v1/responses/input_tokens": {"input": "Hi"},
    "/v1/embeddings": {"input": "Hi"},
    "/v1/rerank": {"query": "Hi", "documents": ["a"]},
    "/v1/score": {"text_1": "Hi", "text_2": "a"},
    "/v1/classify": {"input": "Hi"},
    "/tokenize": {"prompt": "Hi"},
    "/detokenize": {"tokens": [1]},
}


def _wrong_value(path: str) -> Maker:
    """Values of all types in some of the fields that an endpoint has."""

    def make(chance: random.Random) -> HostileRequest:
        names = chance.sample(_fields(path), min(chance.choice((1, 1, 3)), len(_fields(path))))
        values = {name: chance.choice(_WRONG) for name in names}
        return asking(
            f"wrong types: {path} {', '.join(names)}", path, {**_NEEDED.get(path, {}), **values}
        )

    return make


def _raw(name: str, make: Callable[[random.Random], bytes]) -> Maker:
    return lambda chance: HostileRequest(
        f"JSON: {name}",
        chance.choice(["/v1/chat/completions", "/v1/chat/completions", *_paths()]),
        make(chance),
    )


_BODIES = {
    "nested": _nested,
    "a huge number": _number,
    "no number": _no_number,
    "many keys": _many_keys,
    "many items": _many_items,
    "one key again and again": _same_key,
    "a long key": _long_key,
    "escapes": _escapes,
    "a bad escape": _bad_escape,
    "bad UTF-8": _bad_utf8,
    "another encoding": _encoded,
    "byte order marks": _marked,
    "cut off": _truncated,
    "more after its end": _trailing,
    "nothing": _nothing,
    "noise": _noise,
}

MAKERS: tuple[Maker, ...] = (
    *(_raw(name, make) for name, make in _BODIES.items()),
    _zipped,
    _other_type,
    *map(_wrong_value, _paths()),
    _wrong_value("/v1/chat/completions"),
    _wrong_value("/v1/responses"),
)
