"""Keys of a GGUF file's tokenizer are honoured, or named in a warning."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from test_gguf_sentencepiece import PREFIX, metadata_of

from mrs.architecture.gguf_unused import unused_tokenizer_keys
from mrs.errors import NotReadable
from mrs.text.gguf_tokenizer import read_gguf_tokenizer

WORDS = ["[UNK]", "[CLS]", "[SEP]", "\u2581cafe", "\u2581caf\u00e9"]


def word_pieces(**more: Any) -> dict[str, Any]:
    return {
        PREFIX + "model": "bert",
        PREFIX + "tokens": WORDS,
        PREFIX + "token_type": [3, 3, 3, 1, 1],
        PREFIX + "unknown_token_id": 0,
        PREFIX + "cls_token_id": 1,
        PREFIX + "seperator_token_id": 2,
        **{PREFIX + name.replace("__", "."): value for name, value in more.items()},
    }


def test_whole_texts_end_as_the_file_says() -> None:
    """As llama.cpp embeds texts; a prompt to continue does not end."""
    plain = read_gguf_tokenizer(metadata_of("llama"))
    ending = read_gguf_tokenizer({**metadata_of("llama"), PREFIX + "add_eos_token": True})
    ids = plain.encode_whole("a text").ids
    assert ids[0] == 1
    assert ending.encode_whole("a text").ids == [*ids, 2]
    assert ending.encode_whole("a text", most_tokens=3).ids == [*ids[:2], 2]
    assert ending.encode_prompt("a text") == plain.encode_prompt("a text")
    without_bos = {PREFIX + "add_eos_token": True, PREFIX + "add_bos_token": False}
    only = read_gguf_tokenizer({**metadata_of("llama"), **without_bos})
    assert only.encode_whole("a text").ids == [*ids[1:], 2]


def test_an_end_that_does_not_exist_is_an_error() -> None:
    metadata = word_pieces(add_eos_token=True)
    metadata |= {PREFIX + "model": "gpt2", PREFIX + "merges": []}
    with pytest.raises(NotReadable, match="no end of text"):
        read_gguf_tokenizer(metadata)


@pytest.mark.parametrize(
    ("lowercase", "strip_accents", "found"),
    [(True, None, 3), (True, False, 4), (True, True, 3), (False, None, 4), (False, True, 3)],
)
def test_accents_are_stripped_as_the_file_says(
    lowercase: bool, strip_accents: bool | None, found: int
) -> None:
    more: dict[str, Any] = {"normalizer__lowercase": lowercase}
    if strip_accents is not None:
        more["normalizer__strip_accents"] = strip_accents
    tokenizer = read_gguf_tokenizer(word_pieces(**more))
    assert tokenizer.encode_whole("caf\u00e9").ids == [1, found, 2]


def test_usual_files_have_no_unused_keys() -> None:
    for name in ("llama", "gemma"):
        assert unused_tokenizer_keys(metadata_of(name)) == []
    more = {"normalizer__lowercase": True, "add_sep_token": True}
    assert unused_tokenizer_keys(word_pieces(**more)) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ggml.suppress_tokens", [5, 6]),
        ("ggml.remove_extra_whitespaces", True),
        ("ggml.precompiled_charsmap", [1, 2, 3]),
        ("ggml.add_sep_token", True),
        ("ggml.normalizer.lowercase", True),
        ("ggml.brand_new", 1),
        ("chat_template.rag", "{{ x }}"),
        ("rwkv.world", "x"),
    ],
)
def test_other_keys_are_named_unless_they_are_off(name: str, value: Any) -> None:
    key = f"tokenizer.{name}"
    assert unused_tokenizer_keys({**metadata_of("llama"), key: value}) == [key]
    for off in (False, "", []):
        assert unused_tokenizer_keys({**metadata_of("llama"), key: off}) == []


@pytest.mark.parametrize("value", [10**6, -1, "two"])
def test_an_id_that_is_no_token_is_named(value: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        found = read_gguf_tokenizer({**metadata_of("llama"), PREFIX + "eot_token_id": value})
    assert f"tokenizer.ggml.eot_token_id = {value!r} is no token" in caplog.text
    assert found.end_ids == read_gguf_tokenizer(metadata_of("llama")).end_ids
