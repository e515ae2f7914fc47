"""What the files of all formats say of a tokenizer: its vocabulary, its merges and its rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cached_property

from mrs.text.pre_tokenizers import PreTokenization


class TokenType(IntEnum):
    """Kinds of tokens, with the values of SentencePiece and `tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class Vocabulary:
    """Texts and types of tokens by id, and their scores in SentencePiece."""

    texts: Sequence[str]
    types: Sequence[int]
    scores: Sequence[float] = ()

    @cached_property
    def ids_by_text(self) -> dict[str, int]:
        """The first id of each text."""
        last_first = range(len(self.texts) - 1, -1, -1)
        return {self.texts[token_id]: token_id for token_id in last_first}

    @cached_property
    def repeated(self) -> dict[int, str]:
        """Texts by id of the tokens whose text an earlier token has."""
        first = self.ids_by_text
        return {i: text for i, text in enumerate(self.texts) if first[text] != i}

    def of_types(self, *types: TokenType) -> list[str]:
        return [text for text, kind in zip(self.texts, self.types, strict=True) if kind in types]

    def renamed(self, names: Mapping[int, str]) -> Vocabulary:
        """With other texts for some ids, unless another token has that text already."""
        taken = {text for i, text in enumerate(self.texts) if i not in names}
        texts = [
            names[i] if i in names and names[i] not in taken else text
            for i, text in enumerate(self.texts)
        ]
        return replace(self, texts=texts)


@dataclass(frozen=True)
class SpaceRules:
    """How SentencePiece treats the spaces of a text before its pieces are found.

    `prefix` is where a space is put before a text: nowhere, at its very start, or also after each
    control token. `rewrites` is the precompiled table that changes characters. `collapses`: spaces
    at both ends, and all but one of several, are left out. `is_unigram`: the pieces with the best
    sum of scores are taken; otherwise the best pair is merged again and again.
    """

    prefix: str = "always"  # never, first or always
    rewrites: bytes = b""
    collapses: bool = False
    is_unigram: bool = False


@dataclass(frozen=True)
class WordPieceRules:
    """How BERT cleans a text; None strips accents where it lower-cases."""

    lowercase: bool = True
    strips_accents: bool | None = None
    splits_chinese: bool = True


@dataclass(frozen=True)
class Around:
    """The tokens around a text, `$A`, and around two, `$A` and `$B`; those of type 1 have `:1`."""

    one: Sequence[str]
    two: Sequence[str]


@dataclass(frozen=True)
class Described:
    """A tokenizer as a file describes it, whatever the file's format.

    `special_tokens` are texts by role (`bos_token`, …). `around` are the tokens around each text;
    without them, `add_bos` says whether one stands before a text. `strips_after_control`: control
    tokens include the white space after them. `where` is the file, for errors.
    """

    vocabulary: Vocabulary
    rules: PreTokenization | SpaceRules | WordPieceRules
    merges: Sequence[tuple[str, str]] = ()
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    add_bos: bool = False
    around: Around | None = None
    strips_after_control: bool = False
    where: str = ""
