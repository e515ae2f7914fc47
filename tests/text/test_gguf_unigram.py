"""Unigram tokenizers from GGUF metadata, as XLM-RoBERTa's files have them."""

from __future__ import annotations

import base64
import json
import zlib
from pathlib import Path
from typing import Any

import pytest

from mrs.architecture.gguf_unused import unused_tokenizer_keys
from mrs.errors import NotReadable
from mrs.text.gguf_tokenizer import read_gguf_tokenizer
from mrs.text.vocabulary import SpaceRules
from mrs.text.vocabulary_files.sentencepiece_model import read_sentencepiece

RECORDED = json.loads(Path(__file__).with_name("vocabulary_files.json").read_text("utf-8"))
PREFIX = "tokenizer.ggml."


def metadata_of(name: str, **more: Any) -> dict[str, Any]:
    """A SentencePiece model as llama.cpp's converter writes it."""
    data = zlib.decompress(base64.b64decode(RECORDED["models"][name]["data"]))
    found = read_sentencepiece(data, prefix="always", where=name)
    assert isinstance(found.rules, SpaceRules)
    return {
        PREFIX + "model": "t5",
        PREFIX + "pre": "default",
        PREFIX + "tokens": found.vocabulary.texts,
        PREFIX + "scores": [float(score) for score in found.vocabulary.scores],
        PREFIX + "token_type": [int(kind) for kind in found.vocabulary.types],
        PREFIX + "bos_token_id": found.vocabulary.ids_by_text["<s>"],
        PREFIX + "eos_token_id": found.vocabulary.ids_by_text["</s>"],
        PREFIX + "add_space_prefix": found.rules.prefix != "never",
        PREFIX + "remove_extra_whitespaces": found.rules.collapses,
        PREFIX + "precompiled_charsmap": list(found.rules.rewrites),
        **{PREFIX + key: value for key, value in more.items()},
    }


@pytest.mark.parametrize("name", ["unigram", "unigram-unknown", "unigram-user"])
def test_same_ids_as_sentencepiece(name: str) -> None:
    ours = read_gguf_tokenizer(metadata_of(name))
    assert len(RECORDED["strings"]) > 80
    for text, ids in zip(RECORDED["strings"], RECORDED["models"][name]["ids"], strict=True):
        assert ours.encode(text, allow_special=False) == ids, text


def test_what_stands_around_texts() -> None:
    metadata = metadata_of("unigram", add_bos_token=True, add_eos_token=True)
    bos, eos = metadata[PREFIX + "bos_token_id"], metadata[PREFIX + "eos_token_id"]
    ours = read_gguf_tokenizer(metadata)
    one, two = (ours.encode(text, allow_special=False) for text in ("a text", "another"))
    assert ours.encode_whole("a text").ids == [bos, *one, eos]
    pair = ours.encode_whole("a text", "another")
    assert pair.ids == [bos, *one, eos, eos, *two, eos]
    assert set(pair.types) == {0}
    assert unused_tokenizer_keys({**metadata, PREFIX + "add_sep_token": True}) == []
    bare = {**metadata, PREFIX + "add_bos_token": False, PREFIX + "add_eos_token": False}
    assert read_gguf_tokenizer(bare).encode_whole("a text").ids == one


def test_a_table_that_is_malformed_is_an_error() -> None:
    with pytest.raises(NotReadable, match="table of characters"):
        read_gguf_tokenizer(metadata_of("unigram", precompiled_charsmap=[1, 2, 3]))
