"""SentencePiece's `tokenizer.model`: pieces with scores, and how texts are normalized."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Any

from mrs.errors import NotReadable, Unsupported
from mrs.text.vocabulary import Described, SpaceRules, TokenType, Vocabulary
from mrs.text.vocabulary_files.protobuf import fields, signed

#: Fields of the messages in SentencePiece's sentencepiece_model.proto.
_PIECES, _TRAINER, _NORMALIZER, _DENORMALIZER = 1, 2, 3, 5
_TEXT, _SCORE, _TYPE = 1, 2, 3
_MODEL_TYPE, _SPACE_AS_SUFFIX = 3, 24
_ROLES = {"unk_token": (40, 0), "bos_token": (41, 1), "eos_token": (42, 2), "pad_token": (43, -1)}
_CHARACTERS, _DUMMY_PREFIX, _COLLAPSES, _ESCAPES = 2, 3, 4, 5
_UNIGRAM, _BPE = 1, 2
_MODEL_TYPES = {3: "WORD", 4: "CHAR"}
_SPACE = "▁"


def read_sentencepiece(data: bytes, *, prefix: str, where: str) -> Described:
    """The tokenizer in a model file; `prefix` is that of `SpaceRules` if the file has one.

    Raises NotReadable for malformed data, and Unsupported for models of words or characters and
    for rules that no published model has.
    """
    try:
        messages = list(fields(data))
        trainer = _settings(messages, _TRAINER)
        normalizer = _settings(messages, _NORMALIZER)
        denormalizer = _settings(messages, _DENORMALIZER)
        vocabulary = _vocabulary(value for number, value in messages if number == _PIECES)
    except (ValueError, struct.error) as error:
        raise NotReadable(f"not a SentencePiece model: {error}", where=where) from error
    model_type = trainer.get(_MODEL_TYPE, _UNIGRAM)
    refused = {
        f"a model of type {_MODEL_TYPES.get(model_type, model_type)}": model_type
        not in (_UNIGRAM, _BPE),
        "treat_whitespace_as_suffix": trainer.get(_SPACE_AS_SUFFIX),
        "escape_whitespaces=false": not normalizer.get(_ESCAPES, True),
        "a denormalizer": denormalizer.get(_CHARACTERS),
    }
    for what, is_there in refused.items():
        if is_there:
            raise Unsupported(
                f"{what} in the SentencePiece model",
                where=where,
                hint="give the model's tokenizer.json with -t",
            )
    rules = SpaceRules(
        prefix if normalizer.get(_DUMMY_PREFIX, True) else "never",
        normalizer.get(_CHARACTERS, b""),
        bool(normalizer.get(_COLLAPSES, True)),
        is_unigram=model_type == _UNIGRAM,
    )
    named = {role: _text(vocabulary, trainer, *field) for role, field in _ROLES.items()}
    return Described(
        vocabulary,
        rules,
        special_tokens={role: text for role, text in named.items() if text is not None},
        where=where,
    )


def _settings(messages: Iterable[tuple[int, int | bytes]], number: int) -> Mapping[int, Any]:
    """The fields of the last message with a number; none without one."""
    values = [value for each, value in messages if each == number]
    return dict(fields(_bytes(values[-1]))) if values else {}


def _vocabulary(pieces: Iterable[int | bytes]) -> Vocabulary:
    """The pieces; user-defined ones have plain spaces, as the texts in which they are found."""
    texts: list[str] = []
    types: list[int] = []
    scores: list[float] = []
    for piece in pieces:
        row = dict(fields(_bytes(piece)))
        kind, text = row.get(_TYPE, TokenType.NORMAL), _bytes(row.get(_TEXT, b"")).decode()
        if not isinstance(kind, int) or kind not in list(TokenType):
            raise ValueError(f"piece {len(texts)} has the type {kind!r}")
        texts.append(text.replace(_SPACE, " ") if kind == TokenType.USER_DEFINED else text)
        types.append(kind)
        scores.append(struct.unpack("<f", _bytes(row.get(_SCORE, bytes(4))))[0])
    if not texts:
        raise ValueError("it has no pieces")
    return Vocabulary(texts, types, scores)


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError(  # noqa: TRY004 - of data, not of code
            "a number where a text or a message should be"
        )
    return value


def _text(
    vocabulary: Vocabulary, trainer: Mapping[int, Any], number: int, default: int
) -> str | None:
    """The piece whose id is a setting of the trainer; None without one (-1)."""
    value = trainer.get(number, default)
    token_id = signed(value) if isinstance(value, int) else -1
    return vocabulary.texts[token_id] if 0 <= token_id < len(vocabulary.texts) else None
