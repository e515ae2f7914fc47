"""SentencePiece tokenizers from GGUF metadata against SentencePiece and transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from text_samples import texts
from tokenizers import AddedToken, Tokenizer, models, normalizers
from transformers.convert_slow_tokenizer import generate_merges

from mrs.errors import NotReadable
from mrs.text.gguf_tokenizer import read_gguf_tokenizer

RECORDED = json.loads(Path(__file__).with_name("sentencepiece_models.json").read_text())
STRINGS: list[str] = RECORDED["strings"]
MODELS = ("llama", "gemma")
PREFIX = "tokenizer.ggml."


def metadata_of(name: str) -> dict[str, Any]:
    """What llama.cpp's converter writes: user-defined tokens with plain spaces."""
    model = RECORDED[name]
    tokens = [
        text.replace("\u2581", " ") if kind == 4 else text
        for text, kind in zip(model["pieces"], model["types"], strict=True)
    ]
    return {
        "general.architecture": name,
        PREFIX + "model": "llama",
        PREFIX + "pre": "default",
        PREFIX + "tokens": tokens,
        PREFIX + "scores": model["scores"],
        PREFIX + "token_type": model["types"],
        PREFIX + "bos_token_id": 1,
        PREFIX + "eos_token_id": 2,
        PREFIX + "unknown_token_id": 0,
        PREFIX + "add_space_prefix": model["add_dummy_prefix"],
    }


@pytest.mark.parametrize("name", MODELS)
def test_same_ids_as_sentencepiece(name: str) -> None:
    ours = read_gguf_tokenizer(metadata_of(name))
    # SentencePiece puts one space before a text, tokenizers one before each stretch between
    # user-defined tokens: only texts without such tokens compare in the llama model.
    strings = [
        (text, ids)
        for text, ids in zip(STRINGS, RECORDED[name]["ids"], strict=True)
        if name == "gemma" or "think>" not in text
    ]
    assert len(strings) > 200
    for text, ids in strings:
        assert ours.encode(text, allow_special=True) == ids


@pytest.mark.parametrize("name", MODELS)
def test_same_ids_as_transformers_conversion(name: str) -> None:
    metadata = metadata_of(name)
    reference = _converted(metadata, name)
    ours = read_gguf_tokenizer(metadata)
    strings = texts(2000)
    expected = [e.ids for e in reference.encode_batch(strings, add_special_tokens=False)]
    assert [ours.encode(text, allow_special=True) for text in strings] == expected


def _converted(metadata: dict[str, Any], name: str) -> Tokenizer:
    """As transformers turns a SentencePiece model into a tokenizer.json."""
    rows = list(zip(metadata[PREFIX + "tokens"], metadata[PREFIX + "token_type"], strict=True))
    vocab = {text: i for i, (text, _) in enumerate(rows)}
    special = [text for text, kind in rows if kind in (2, 3)]
    user_defined = [text for text, kind in rows if kind == 4]
    reference = Tokenizer(
        models.BPE(vocab, _merges(metadata), unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    replace = normalizers.Replace(" ", "\u2581")
    prepend = normalizers.Sequence([normalizers.Prepend("\u2581"), replace])
    reference.normalizer = prepend if name == "llama" else replace
    reference.add_special_tokens([AddedToken(text, normalized=False) for text in special])
    reference.add_tokens([AddedToken(text, normalized=False) for text in user_defined])
    return reference


def _merges(metadata: dict[str, Any]) -> list[tuple[str, str]]:
    tokens, kinds = metadata[PREFIX + "tokens"], metadata[PREFIX + "token_type"]
    scores = dict(zip(tokens, metadata[PREFIX + "scores"], strict=True))
    skipped = {text for text, kind in zip(tokens, kinds, strict=True) if kind in (2, 3, 4)}
    return generate_merges({text: i for i, text in enumerate(tokens)}, scores, skip_tokens=skipped)


def test_files_of_gemma_4_have_merges() -> None:
    metadata = metadata_of("gemma")
    merges = [" ".join(pair) for pair in _merges(metadata)]
    newer = read_gguf_tokenizer(
        metadata | {PREFIX + "model": "gemma4", PREFIX + "merges": merges, PREFIX + "scores": None}
    )
    older = read_gguf_tokenizer(metadata)
    for text in texts(500):
        assert newer.encode(text, allow_special=True) == older.encode(text, allow_special=True)


@pytest.mark.parametrize("merge", ["no-such-piece a", "alone"])
def test_merges_must_fit(merge: str) -> None:
    metadata = metadata_of("gemma") | {PREFIX + "model": "gemma4", PREFIX + "merges": [merge]}
    with pytest.raises(NotReadable, match="merge"):
        read_gguf_tokenizer(metadata)


@pytest.mark.parametrize("name", MODELS)
def test_text_survives_a_round_trip(name: str) -> None:
    ours = read_gguf_tokenizer(metadata_of(name))
    for text in texts(300, special=False):
        if "\u2581" in text:
            continue  # the same piece as a space
        ids = ours.encode(text, allow_special=False)
        assert 0 not in ids
        assert ours.decode(ids) == text


def test_bytes_are_spelled_only_by_bytes() -> None:
    ours = read_gguf_tokenizer(metadata_of("gemma"))
    byte = RECORDED["gemma"]["pieces"].index("<0x0A>")
    assert byte not in ours.encode("<0x0A>", allow_special=True)
    assert ours.piece(byte) == b"\n"
    assert ours.decode(ours.encode("<0x0A>", allow_special=True)) == "<0x0A>"


def test_bos_comes_first_unless_the_file_says_otherwise() -> None:
    metadata = metadata_of("llama")
    assert read_gguf_tokenizer(metadata).encode_prompt("hello")[0] == 1
    metadata[PREFIX + "add_bos_token"] = False
    assert read_gguf_tokenizer(metadata).encode_prompt("hello")[0] != 1


def test_phi3_control_tokens_take_the_white_space_after_them() -> None:
    metadata = metadata_of("llama") | {"general.architecture": "phi3"}
    ours = read_gguf_tokenizer(metadata)
    assert ours.encode("</s>\n", allow_special=True) == [2]
    assert len(ours.encode("<s>\n", allow_special=True)) > 1


@pytest.mark.parametrize("scores", [None, [0.0]])
def test_scores_must_fit(scores: list[float] | None) -> None:
    metadata = metadata_of("llama") | {PREFIX + "scores": scores}
    with pytest.raises(NotReadable, match="score"):
        read_gguf_tokenizer(metadata)


def test_a_token_with_the_text_of_another_is_shown() -> None:
    """The library keeps one id for each text; a model may choose the other one."""
    metadata = metadata_of("llama")
    first = metadata[PREFIX + "tokens"].index("a")
    metadata[PREFIX + "tokens"] = [*metadata[PREFIX + "tokens"], "a"]
    metadata[PREFIX + "scores"] = [*metadata[PREFIX + "scores"], -1e4]
    metadata[PREFIX + "token_type"] = [*metadata[PREFIX + "token_type"], 1]
    ours = read_gguf_tokenizer(metadata)
    second = len(metadata[PREFIX + "tokens"]) - 1
    assert ours.encode("a", allow_special=True) == read_gguf_tokenizer(metadata_of("llama")).encode(
        "a", allow_special=True
    )
    for same in (ours, ours.reserving(["x"])):
        assert same.piece(second) == same.piece(first) == b"a"
        assert same.text_of(second) == "a"
    assert ours.text_of(second + 1) is None
