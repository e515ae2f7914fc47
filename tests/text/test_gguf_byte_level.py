"""Byte-level tokenizers from GGUF metadata against the tokenizer.json of the same vocabulary."""

from __future__ import annotations

from typing import Any

import pytest
from text_samples import (
    CONTROL,
    USER_DEFINED,
    gguf_metadata,
    published_pre_tokenizers,
    texts,
    train_byte_level,
)
from tokenizers import Tokenizer

from mrs.errors import NotReadable, Unsupported
from mrs.text.gguf_tokenizer import read_gguf_tokenizer
from support.suites import first

PUBLISHED = published_pre_tokenizers()
PREFIX = "tokenizer.ggml."


@pytest.fixture(scope="module")
def qwen2() -> Tokenizer:
    return train_byte_level(PUBLISHED["qwen2"])


@pytest.mark.few(6)
@pytest.mark.parametrize("name", sorted(PUBLISHED))
@pytest.mark.parametrize("num_texts", first(1, (300, 2000)))
def test_same_ids_as_tokenizer_json(name: str, num_texts: int) -> None:
    reference = train_byte_level(PUBLISHED[name])
    ours = read_gguf_tokenizer(gguf_metadata(reference, name))
    strings = texts(num_texts)
    expected = [e.ids for e in reference.encode_batch(strings, add_special_tokens=False)]
    assert [ours.encode(text, allow_special=True) for text in strings] == expected
    assert len(set(map(tuple, expected))) > 0.9 * num_texts


def test_text_survives_a_round_trip(qwen2: Tokenizer) -> None:
    ours = read_gguf_tokenizer(gguf_metadata(qwen2, "smollm"))  # a rule that does not normalize
    for text in texts(500):
        assert ours.decode(ours.encode(text, allow_special=False)) == text


def test_token_types_decide_what_a_token_is(qwen2: Tokenizer) -> None:
    metadata = gguf_metadata(qwen2, "qwen2", padding=5)
    ours = read_gguf_tokenizer(metadata)
    assert set(ours.control_ids) == set(CONTROL)
    assert ours.backend.get_vocab_size() == len(metadata[PREFIX + "tokens"])
    unused = f"[PAD{ours.backend.get_vocab_size() - 1}]"
    assert metadata[PREFIX + "tokens"][-1] == unused
    assert ours.backend.get_vocab_size() - 1 not in ours.encode(unused, allow_special=True)
    for text in USER_DEFINED:
        assert ours.encode(f"a {text} b", allow_special=False).count(ours.added_ids[text]) == 1


def test_special_ids(qwen2: Tokenizer) -> None:
    metadata = gguf_metadata(qwen2, "qwen2")
    tokens = metadata[PREFIX + "tokens"]
    eot, eom = tokens.index("</s>"), tokens.index("<unk>")
    ours = read_gguf_tokenizer(
        {**metadata, PREFIX + "eot_token_id": eot, PREFIX + "eom_token_id": eom}
    )
    assert (ours.bos_id, ours.eos_id) == (
        tokens.index("<|endoftext|>"),
        tokens.index("<|im_end|>"),
    )
    assert {eot, eom, ours.eos_id, tokens.index("<|endoftext|>")} == ours.end_ids


@pytest.mark.parametrize(
    ("pre", "add_bos", "starts_with_bos"),
    [
        ("qwen2", None, False),
        ("qwen2", True, True),
        ("llama-bpe", None, True),
        ("tekken", False, False),
    ],
)
def test_bos_before_a_bare_prompt(
    qwen2: Tokenizer, pre: str, add_bos: bool | None, starts_with_bos: bool
) -> None:
    metadata = gguf_metadata(qwen2, pre)
    if add_bos is not None:
        metadata[PREFIX + "add_bos_token"] = add_bos
    ours = read_gguf_tokenizer(metadata)
    ids = ours.encode_prompt("hello")
    assert ids == [ours.bos_id] * starts_with_bos + ours.encode("hello", allow_special=True)
    assert ours.encode_prompt("<|endoftext|>hello").count(ours.bos_id or 0) == 1


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"pre": "no-such-rule"}, Unsupported, "no-such-rule"),
        ({"model": "plamo2"}, Unsupported, "plamo2"),
        ({"tokens": None}, NotReadable, "tokenizer.ggml.tokens"),
        ({"merges": None}, NotReadable, "tokenizer.ggml.merges"),
        ({"tokens": "abc"}, NotReadable, "not an array"),
        ({"tokens": [1, 2]}, NotReadable, "type str"),
        ({"pre": ["qwen2"]}, Unsupported, "qwen2"),
        ({"merges": ["ab"]}, NotReadable, "'ab' is not two tokens"),
        ({"merges": ["no such"]}, NotReadable, "disagree"),
        ({"token_type": [1, 1]}, NotReadable, "token_type"),
    ],
)
def test_malformed_metadata(
    qwen2: Tokenizer, change: dict[str, Any], error: type[Exception], words: str
) -> None:
    metadata = gguf_metadata(qwen2, "qwen2") | {PREFIX + name: v for name, v in change.items()}
    with pytest.raises(error, match=words):
        read_gguf_tokenizer(metadata)
