"""A text that fits is never refused; one that cannot fit is, with little work."""

from __future__ import annotations

import random

import pytest
from text_checkpoints import BACKEND

from mrs.errors import ContextFull, TextTooLong
from mrs.request import Message
from mrs.text import text_limit
from mrs.text.text_limit import TextLimit
from mrs.text.tokenizer import Tokenizer

TOKENIZER = Tokenizer(BACKEND, special_tokens={})
#: Of the longest words of the vocabulary, of characters of several tokens, and of long runs.
ALPHABETS = ["abc def ", "\u0301\u4e2d\U0001f600", " ", "a", "\n\t ", "0123456789", "<|im_end|> "]


@pytest.mark.parametrize("alphabet", ALPHABETS)
def test_a_text_that_fits_is_not_refused(alphabet: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_limit, "_ALWAYS_BYTES", 0)
    monkeypatch.setattr(text_limit, "_PIECE_CHARACTERS", 50)
    monkeypatch.setattr(text_limit, "TOKEN_TEXT_BYTES", 0)
    rng = random.Random(alphabet)
    for length in (1, 49, 50, 51, 1000, 5000):
        text = "".join(rng.choices(alphabet, k=length))
        tokens = len(TOKENIZER.encode_prompt(text))
        TextLimit(TOKENIZER, tokens).check(text)


def test_a_text_of_the_longest_token_fits_and_one_byte_more_does_not() -> None:
    longest = TOKENIZER.longest_bytes
    limit = TextLimit(TOKENIZER, 2**20)
    with pytest.raises(TextTooLong, match=rf"{2**20 * longest + 1} bytes .* {2**20 * longest} "):
        limit.check("a" * (2**20 * longest + 1))


def test_a_long_text_is_counted_only_until_the_context_is_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[int] = []
    encode = text_limit.encode

    def counting(backend: object, text: str, **more: bool) -> object:
        seen.append(len(text))
        return encode(TOKENIZER.backend, text, **more)

    monkeypatch.setattr(text_limit, "encode", counting)
    monkeypatch.setattr(text_limit, "TOKEN_TEXT_BYTES", 0)
    context = 100_000
    text = "z9" * context  # twice as many as fit
    with pytest.raises(ContextFull, match=f"more than {context} tokens"):
        TextLimit(TOKENIZER, context).check(text)
    assert sum(seen) < 0.6 * len(text)


def test_all_that_templates_read_of_messages_counts() -> None:
    call = {"id": "1", "name": "f", "arguments": "x" * 2**17}
    big: list[Message] = [
        {"role": "user", "content": "x" * 2**17},
        {"role": "assistant", "content": "", "reasoning": "x" * 2**17},
        {"role": "assistant", "content": None, "tool_calls": [call]},  # type: ignore[list-item]
    ]
    for message in big:
        with pytest.raises(TextTooLong) as refused:
            TextLimit(TOKENIZER, 100).check_messages([message])
        assert refused.value.can_be_cut


def test_half_of_a_surrogate_pair_has_a_size() -> None:
    TextLimit(TOKENIZER, 100).check_messages([{"role": "user", "content": "\ud800"}])
