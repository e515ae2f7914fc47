"""Texts with the tokens that a tokenizer puts around them, whole or cut, and WordPiece."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mrs.text.hf_tokenizer import read_hf_tokenizer
from mrs.text.tokenizer import Tokenizer
from support.sentence_models import token_ids, write_tokenizer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_tokenizer(tmp_path)
    return tmp_path


def tokenizer(folder: Path, **settings: object) -> Tokenizer:
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return read_hf_tokenizer(
        lambda name: (folder / name).read_text() if (folder / name).exists() else None
    )


@pytest.mark.parametrize(
    "settings", [{}, {"add_bos_token": True, "bos_token": "[CLS]"}, {"add_bos_token": False}]
)
def test_the_tokenizer_puts_its_tokens_around(folder: Path, settings: dict[str, object]) -> None:
    made = tokenizer(folder, **settings)
    assert made.encode_whole("a key") == token_ids(folder, "a key")
    assert made.encode_whole("a key", "texts") == token_ids(folder, "a key", "texts")
    cut = made.encode_whole("keys " * 50, most_tokens=20)
    whole, _ = token_ids(folder, "keys " * 50)
    assert cut.ids == [*whole[:19], whole[-1]]


def test_a_missing_bos_is_added(folder: Path) -> None:
    made = tokenizer(folder, add_bos_token=True, bos_token="[UNK]")
    bos = made.bos_id
    ids, types = token_ids(folder, "a key")
    assert made.encode_whole("a key") == ([bos, *ids], [0, *types])
    assert len(made.encode_whole("keys " * 50, most_tokens=20).ids) == 20


def test_a_query_is_never_cut(folder: Path) -> None:
    made = tokenizer(folder)
    cut = made.encode_whole("a key", "texts " * 50, most_tokens=12)
    whole = token_ids(folder, "a key", "texts " * 50)
    assert cut.ids == [*whole[0][:11], whole[0][-1]]
    assert cut.types == [*whole[1][:11], 1]


def test_word_pieces_become_text_again(folder: Path) -> None:
    made = tokenizer(folder)
    ids = made.encode("the cache keeps tokens", allow_special=True)
    assert made.decode(ids) == "the cache keeps tokens"
