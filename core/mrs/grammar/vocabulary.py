"""A model's vocabulary as llguidance reads it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import llguidance

    from mrs.text.tokenizer import Tokenizer


class Controls(NamedTuple):
    """A vocabulary without the texts of ordinary tokens.

    size   all tokens
    texts  of control tokens, by id
    ends   ids of those that end a reply
    """

    size: int
    texts: Mapping[int, str]
    ends: list[int]


def controls_of(tokenizer: Tokenizer, vocab_size: int, end_ids: Iterable[int]) -> Controls:
    """The control tokens of a model whose logits have `vocab_size` values.

    One more is the end token if the model has none.
    """
    texts = {i: text for text, i in tokenizer.control_ids.items() if i < vocab_size}
    ends = sorted(i for i in set(end_ids) if i < vocab_size)
    if ends:
        return Controls(vocab_size, texts, ends)
    return Controls(vocab_size + 1, {**texts, vocab_size: "<end>"}, [vocab_size])


class Vocabulary:
    """The bytes of each token, and the tokens of a text, in the form of llguidance's wrapper.

    Those without a text stay empty and are never allowed; without a tokenizer, these are all but
    control tokens.
    """

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, controls: Controls, tokenizer: Tokenizer | None = None) -> None:
        size, texts, ends = controls
        self._tokenizer = tokenizer
        piece = (lambda token: b"") if tokenizer is None else tokenizer.piece
        self.tokens = [texts[i].encode() if i in texts else piece(i) for i in range(size)]
        self.end_ids = ends
        self.eos_token_id = ends[0]
        self.special_token_ids = sorted({*texts, *ends})

    def __call__(self, text: str) -> list[int]:
        """The tokens of a text that follows other text."""
        if self._tokenizer is None:
            return []
        return self._tokenizer.encode_next(text, allow_special=False)


def read_vocabulary(tokenizer: Tokenizer, controls: Controls) -> llguidance.LLTokenizer:
    """The vocabulary of a model; takes up to a second."""
    import llguidance

    vocabulary = Vocabulary(controls, tokenizer)
    return llguidance.LLTokenizer(
        vocabulary,  # type: ignore[arg-type]
        eos_token=vocabulary.end_ids,
    )


def without_texts(controls: Controls) -> llguidance.LLTokenizer:
    """A vocabulary that compiles grammars, and is read soon."""
    import llguidance

    return llguidance.LLTokenizer(
        Vocabulary(controls),  # type: ignore[arg-type]
        eos_token=controls.ends,
        slices=[],
    )
