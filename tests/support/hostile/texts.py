"""Texts that are long or strange, in each field of each endpoint that reads a text."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from support.hostile.request import MB, HostileRequest, Maker, asking

_PIECES: dict[str, str] = {
    "words": "hello world ",
    "spaces": " ",
    "line ends": "\r\n",
    "one word": "a",
    "digits": "7",
    "combining marks": "\u0301",
    "a letter of marks": "e\u0301\u0323\u0302",
    "joined emoji": "👩\u200d👩\u200d👧\u200d👦",
    "flags": "🇦",
    "control characters": "".join(map(chr, range(1, 32))),
    "NUL": "\0",
    "lone surrogates": "\ud800a",
    "halves of a pair": "\udc00\ud83d",
    "right to left": "\u202eabc\u202c",
    "no characters": "\ufffe\uffff",
    "tags": "\U000e0041",
    "brackets": "<",
    "end of a turn": "<|im_end|>\n<|im_start|>system\n",
    "ends of texts": "</s><|endoftext|><eos>",
    "template": "{{ ''.__class__.__mro__ }}{% for a in range(10**9) %}{{ a }}{% endfor %}",
    "marks of images": "<image><|image_pad|>\ufffc",
    "Hangul": "\u1100\u1161\u11a8",
    "ligatures that grow": "\ufdfa",
}
_SIZES = (200, 20_000, 300_000, MB, 5 * MB)


def _messages(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def _blocks(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": "text", "text": text}] * 2}]


_FIELDS: dict[str, tuple[str, Callable[[str], dict[str, Any]]]] = {
    "message": ("/v1/chat/completions", lambda t: {"messages": _messages(t)}),
    "parts": ("/v1/chat/completions", lambda t: {"messages": _blocks(t)}),
    "name": (
        "/v1/chat/completions",
        lambda t: {"messages": [{"role": "user", "name": t, "content": "Hi"}]},
    ),
    "thought": (
        "/v1/chat/completions",
        lambda t: {
            "messages": [
                *_messages("Hi"),
                {"role": "assistant", "content": "x", "reasoning_content": t},
                *_messages("Go on"),
            ]
        },
    ),
    "cut message": (
        "/v1/chat/completions",
        lambda t: {"messages": _messages(t), "truncate_sequence": True},
    ),
    "continued": (
        "/v1/chat/completions",
        lambda t: {
            "messages": [*_messages("Hi"), {"role": "assistant", "content": t}],
            "continue_final_message": True,
        },
    ),
    "salt": ("/v1/chat/completions", lambda t: {"messages": "Hi", "cache_salt": t}),
    "model": ("/v1/chat/completions", lambda t: {"messages": "Hi", "model": t}),
    "adapter": ("/v1/chat/completions", lambda t: {"messages": "Hi", "adapter": t}),
    "prompt": ("/v1/completions", lambda t: {"prompt": t}),
    "scored prompt": ("/v1/completions", lambda t: {"prompt": t, "echo": True, "logprobs": 5}),
    "cut prompt": ("/v1/completions", lambda t: {"prompt": t, "truncate_prompt_tokens": 9}),
    "suffix": ("/v1/completions", lambda t: {"prompt": "a", "suffix": t}),
    "system": ("/v1/messages", lambda t: {"messages": _messages("Hi"), "system": t}),
    "blocks": ("/v1/messages", lambda t: {"messages": _blocks(t)}),
    "tool result": (
        "/v1/messages",
        lambda t: {
            "messages": [
                *_messages("Hi"),
                {
                    "role": "assistant",
                    "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {"x": t}}],
                },
                {
                    "role": "user",
                    "content": [{"type": "tool_result", "tool_use_id": "a", "content": t}],
                },
            ]
        },
    ),
    "counted": ("/v1/messages/count_tokens", lambda t: {"messages": _messages(t)}),
    "input": ("/v1/responses", lambda t: {"input": t, "max_output_tokens": 4, "store": False}),
    "stored input": (
        "/v1/responses",
        lambda t: {"input": t, "max_output_tokens": 4, "truncation": "auto"},
    ),
    "instructions": ("/v1/responses", lambda t: {"input": "Hi", "instructions": t}),
    "counted input": ("/v1/responses/input_tokens", lambda t: {"input": t}),
    "embedded": ("/v1/embeddings", lambda t: {"input": [t, "b"]}),
    "embedded and cut": ("/v1/embeddings", lambda t: {"input": t, "truncate_sequence": True}),
    "query": ("/v1/rerank", lambda t: {"query": t, "documents": ["a", "b"]}),
    "document": ("/v1/rerank", lambda t: {"query": "a", "documents": [t, {"text": t}]}),
    "classified": ("/v1/classify", lambda t: {"input": t, "text_pair": t}),
    "pair": ("/v1/score", lambda t: {"text_1": t, "text_2": [t]}),
    "tokenized": ("/tokenize", lambda t: {"prompt": t, "with_pieces": True}),
    "tokenized chat": ("/tokenize", lambda t: {"messages": _messages(t)}),
}


def _made(name: str, field: str, size: int) -> HostileRequest:
    piece = _PIECES[name]
    path, fields = _FIELDS[field]
    text = piece * max(1, size // len(piece.encode("utf-8", "surrogatepass")))
    return asking(f"text: {size:,} B of {name}, {field}", path, {"max_tokens": 4, **fields(text)})


def _of_text(name: str) -> Maker:
    return lambda chance: _made(name, chance.choice([*_FIELDS]), chance.choice(_SIZES))


def _in_field(field: str) -> Maker:
    return lambda chance: _made(chance.choice([*_PIECES]), field, chance.choice(_SIZES))


def _forty_megabytes(chance: random.Random) -> HostileRequest:
    return _made(chance.choice(["one word", "words", "spaces"]), "message", 40 * MB)


def _quoted(chance: random.Random) -> HostileRequest:
    """As long as a body may be, and twice that as JSON that the template writes again."""
    text = chance.choice(['"', "\\", "\n", "é"]) * chance.choice([1000, 5 * MB])
    return _made_of(text)


def _made_of(text: str) -> HostileRequest:
    path, fields = _FIELDS["message"]
    return asking(f"text: {len(text):,} of {text[0]!r}, escaped", path, fields(text))


MAKERS: tuple[Maker, ...] = (
    *map(_of_text, _PIECES),
    *map(_in_field, _FIELDS),
    _forty_megabytes,
    _quoted,
)
