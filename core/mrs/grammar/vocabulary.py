"""A model's vocabulary as llguidance reads it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from mrs.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    import llguidance


class Vocabulary:
    """The bytes of each token, and the tokens of a text, in the form of llguidance's wrapper.

    It has `vocab_size` tokens like the model's logits, of which those without a text stay empty
    and are never allowed. One more is the end token if the model has none.
    """

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, end_ids: Iterable[int]) -> None:
        self._tokenizer = tokenizer
        control = {i: text for text, i in tokenizer.control_ids.items() if i < vocab_size}
        self.tokens = [
            control[i].encode() if i in control else tokenizer.piece(i) for i in range(vocab_size)
        ]
        self.end_ids = sorted(i for i in set(end_ids) if i < vocab_size)
        if not self.end_ids:
            self.end_ids = [vocab_size]
            self.tokens.append(b"<end>")
        self.eos_token_id = self.end_ids[0]
        self.special_token_ids = sorted({*control, *self.end_ids})

    def __call__(self, text: str) -> list[int]:
        """The tokens of a text that follows other text."""
        return self._tokenizer.encode_next(text, allow_special=False)


def read_vocabulary(
    tokenizer: Tokenizer, vocab_size: int, end_ids: Iterable[int]
) -> llguidance.LLTokenizer:
    """The vocabulary of a model whose logits have `vocab_size` values; takes up to a second."""
    import llguidance

    vocabulary = Vocabulary(tokenizer, vocab_size, end_ids)
    return llguidance.LLTokenizer(
        vocabulary,  # type: ignore[arg-type]
        eos_token=vocabulary.end_ids,
    )
