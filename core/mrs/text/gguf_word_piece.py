"""The WordPiece tokenizer of BERT from GGUF metadata."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mrs.errors import NotReadable
from mrs.text.build_backend import put_around
from mrs.text.vocabulary import Around, TokenType, Vocabulary

if TYPE_CHECKING:
    import tokenizers

_PREFIX = "tokenizer.ggml."
#: Before a piece that begins a word; the vocabularies of other tokenizers mark the rest of words.
_BEGINS_WORD = "\u2581"


def word_pieces(vocabulary: Vocabulary) -> Vocabulary:
    """The vocabulary as BERT spells it."""
    rows = zip(vocabulary.texts, vocabulary.types, strict=True)
    return replace(vocabulary, texts=[_piece(text, kind) for text, kind in rows])


def surround(
    backend: tokenizers.Tokenizer, metadata: Mapping[str, Any], vocabulary: Vocabulary
) -> None:
    """Puts each text between two tokens."""
    # The key of the last token is misspelled in all files.
    bos = metadata.get(_PREFIX + "bos_token_id", 101)
    first = _special(metadata, vocabulary.texts, "cls_token_id", bos)
    last = _special(metadata, vocabulary.texts, "seperator_token_id", 102)
    around = Around([first, "$A", last], [first, "$A", last, "$B:1", f"{last}:1"])
    put_around(backend, around, where=_PREFIX + "cls_token_id")


def _piece(text: str, kind: int) -> str:
    if kind != TokenType.NORMAL:
        return text
    return text[1:] if text.startswith(_BEGINS_WORD) else f"##{text}"


def _special(metadata: Mapping[str, Any], pieces: Sequence[str], key: str, default: int) -> str:
    """The token with the id under a key, or the default id."""
    index = metadata.get(_PREFIX + key, default)
    if not isinstance(index, int) or not 0 <= index < len(pieces):
        raise NotReadable(f"{index!r} is no token", where=_PREFIX + key)
    return pieces[index]
