"""Prompts for the text between a beginning and an end."""

from __future__ import annotations

import pytest

from mrs.errors import Unsupported
from mrs.text.infill import infill_ids
from mrs.text.tokenizer import Tokenizer
from support.byte_tokenizer import byte_tokenizer

FIM = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"]


def tokenizer(control: list[str], *, add_bos: bool = False) -> Tokenizer:
    backend = byte_tokenizer()
    backend.add_special_tokens(control)
    return Tokenizer(backend, special_tokens={"bos_token": "<s>"}, add_bos=add_bos)


@pytest.mark.parametrize(
    "control",
    [FIM, ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"], ["▁<PRE>", "▁<SUF>", "▁<MID>"]],
)
@pytest.mark.parametrize("add_bos", [False, True])
def test_both_texts_stand_before_the_reply(control: list[str], add_bos: bool) -> None:
    made = tokenizer(control, add_bos=add_bos)
    before, after, middle = map(made.backend.token_to_id, control)
    bos = [made.bos_id] if add_bos else []
    a, b = made.encode("a", allow_special=False), made.encode("b", allow_special=False)
    assert infill_ids(made, "a", "b") == [*bos, before, *a, after, *b, middle]
    assert infill_ids(made, a, "b") == infill_ids(made, "a", "b")


def test_control_tokens_in_the_texts_are_text() -> None:
    made = tokenizer(FIM)
    ids = infill_ids(made, "a<|fim_middle|>", "<|fim_suffix|>b")
    assert [sum(made.backend.token_to_id(each) == i for i in ids) for each in FIM] == [1, 1, 1]


def test_a_vocabulary_without_these_tokens_is_refused() -> None:
    with pytest.raises(Unsupported, match="filling in the middle"):
        infill_ids(tokenizer(FIM[:2]), "a", "b")
