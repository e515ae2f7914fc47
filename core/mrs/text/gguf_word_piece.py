"""The WordPiece tokenizer of BERT from GGUF metadata."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mrs.errors import NotReadable

if TYPE_CHECKING:
    import tokenizers

_PREFIX = "tokenizer.ggml."
#: Before a piece that begins a word; the vocabularies of other tokenizers mark the rest of words.
_BEGINS_WORD = "\u2581"
_NORMAL = 1


def word_piece_backend(
    metadata: Mapping[str, Any], texts: Sequence[str], types: Sequence[int]
) -> tokenizers.Tokenizer:
    """Lower-cases texts unless the file says otherwise, and puts them between two tokens."""
    import tokenizers
    from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

    pieces = [_piece(text, kind) for text, kind in zip(texts, types, strict=True)]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    unknown = _special(metadata, pieces, "unknown_token_id", 100)
    backend = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token=unknown))
    lowercase = bool(metadata.get(_PREFIX + "normalizer.lowercase", True))
    strips = bool(metadata.get(_PREFIX + "normalizer.strip_accents", lowercase))
    backend.normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=strips)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    # The key of the last token is misspelled in all files.
    first = _special(metadata, pieces, "cls_token_id", metadata.get(_PREFIX + "bos_token_id", 101))
    last = _special(metadata, pieces, "seperator_token_id", 102)
    try:
        backend.post_processor = processors.TemplateProcessing(
            single=[first, "$A", last],
            pair=[first, "$A", last, "$B:1", f"{last}:1"],
            special_tokens=[(token, vocabulary[token]) for token in (first, last)],
        )
    except ValueError as error:  # a name that means something in templates
        raise NotReadable(
            f"{first!r} and {last!r} cannot be put around texts", where=_PREFIX + "cls_token_id"
        ) from error
    return backend


def _piece(text: str, kind: int) -> str:
    if kind != _NORMAL:
        return text
    return text[1:] if text.startswith(_BEGINS_WORD) else f"##{text}"


def _special(metadata: Mapping[str, Any], pieces: Sequence[str], key: str, default: int) -> str:
    """The token with the id under a key, or the default id."""
    index = metadata.get(_PREFIX + key, default)
    if not isinstance(index, int) or not 0 <= index < len(pieces):
        raise NotReadable(f"{index!r} is no token", where=_PREFIX + key)
    return pieces[index]
