"""A tokenizer from GGUF metadata alone."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mrs.errors import NotReadable, Unsupported
from mrs.text.build_backend import build_backend, put_around
from mrs.text.pre_tokenizers import PreTokenization, find_pre_tokenization
from mrs.text.tokenizer import Tokenizer
from mrs.text.vocabulary import Around, Described, SpaceRules, TokenType, Vocabulary, WordPieceRules

if TYPE_CHECKING:
    import tokenizers

_logger = logging.getLogger(__name__)

_PREFIX = "tokenizer.ggml."
_ROLES = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}


def read_gguf_tokenizer(metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer that a GGUF file's metadata describes.

    Raises NotReadable if a key is missing or contradicts another one, and Unsupported for an
    unknown tokenizer model or pre-tokenizer.
    """
    model = metadata.get(_PREFIX + "model")
    vocabulary = _vocabulary(metadata)
    default_ids: Mapping[str, int] = {}
    merges: list[tuple[str, str]] = []
    add_bos: bool | None = True
    rules: PreTokenization | SpaceRules | WordPieceRules
    if model == "gpt2":
        rules = find_pre_tokenization(str(metadata.get(_PREFIX + "pre", "default")))
        merges, add_bos = _merges(metadata), rules.add_bos
    elif model == "llama":
        scores = _array(metadata, "scores", float, len(vocabulary.texts))
        vocabulary, rules = replace(vocabulary, scores=scores), _space_rules(metadata)
        default_ids = {"bos_token": 1, "eos_token": 2, "unk_token": 0}
    elif model == "bert":
        from mrs.text.gguf_word_piece import word_pieces

        vocabulary, add_bos = word_pieces(vocabulary), None
        default_ids = {"unk_token": 100}
        lowercase = bool(metadata.get(_PREFIX + "normalizer.lowercase", True))
        strips = bool(metadata.get(_PREFIX + "normalizer.strip_accents", lowercase))
        rules = WordPieceRules(lowercase, strips)
    elif model == "t5":
        scores = _array(metadata, "scores", float, len(vocabulary.texts))
        vocabulary, rules = replace(vocabulary, scores=scores), _unigram_rules(metadata)
        add_bos = None
        default_ids = {"eos_token": 1, "unk_token": 2}
    elif model == "gemma4":
        merges, rules = _merges(metadata), _space_rules(metadata)
    else:
        raise Unsupported(
            f"tokenizer model {model!r} of the GGUF file",
            hint="give tokenizer.json with --tokenizer-json",
        )
    if add_bos is not None:
        add_bos = bool(metadata.get(_PREFIX + "add_bos_token", add_bos))
    special_tokens = _special_tokens(metadata, vocabulary.texts, default_ids)
    backend = build_backend(
        Described(
            vocabulary,
            rules,
            merges,
            special_tokens,
            strips_after_control=_is_phi3(metadata, model),
            where=_PREFIX + "merges",
        )
    )
    if model == "bert":
        from mrs.text.gguf_word_piece import surround

        surround(backend, metadata, vocabulary)
    elif model == "t5":
        _surround(backend, metadata, special_tokens)
    elif metadata.get(_PREFIX + "add_eos_token"):
        has_middle = bool(metadata.get(_PREFIX + "add_sep_token"))
        _end_with(backend, special_tokens.get("eos_token"), has_middle=has_middle)
    return Tokenizer(
        backend,
        special_tokens=special_tokens,
        add_bos=add_bos,
        end_ids=_ids(metadata, vocabulary.texts, ("eos_token_id", "eot_token_id", "eom_token_id")),
        repeated=vocabulary.repeated,
    )


def _vocabulary(metadata: Mapping[str, Any]) -> Vocabulary:
    texts: list[str] = _array(metadata, "tokens", str)
    types: list[int] = [TokenType.NORMAL] * len(texts)
    if _PREFIX + "token_type" in metadata:
        types = _array(metadata, "token_type", int, len(texts))
    return Vocabulary(texts, types)


def _space_rules(metadata: Mapping[str, Any]) -> SpaceRules:
    return SpaceRules("always" if metadata.get(_PREFIX + "add_space_prefix", True) else "never")


def _unigram_rules(metadata: Mapping[str, Any]) -> SpaceRules:
    """The rules of T5 and XLM-RoBERTa, with the table that changes characters."""
    table = _PREFIX + "precompiled_charsmap"
    values = _array(metadata, "precompiled_charsmap", int) if table in metadata else []
    rewrites = bytes(value & 255 for value in values)
    collapses = bool(metadata.get(_PREFIX + "remove_extra_whitespaces", True))
    return replace(_space_rules(metadata), rewrites=rewrites, collapses=collapses, is_unigram=True)


def _merges(metadata: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [_pair(merge) for merge in _array(metadata, "merges", str)]


def _array(
    metadata: Mapping[str, Any], name: str, kind: type, length: int | None = None
) -> list[Any]:
    """The values of an array, each of type `kind`; `length` of them if given."""
    value = metadata.get(_PREFIX + name)
    if value is None:
        raise NotReadable("the GGUF file lacks a key of its tokenizer", where=_PREFIX + name)
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise NotReadable("not an array", where=_PREFIX + name)
    values = list(value)
    if not all(isinstance(item, kind) for item in values):
        raise NotReadable(f"not every value is of type {kind.__name__}", where=_PREFIX + name)
    if length is not None and len(values) != length:
        raise NotReadable(f"{len(values)} values for {length} tokens", where=_PREFIX + name)
    return values


def _pair(merge: str) -> tuple[str, str]:
    left, space, right = merge.partition(" ")
    if not (left and space and right):
        raise NotReadable(f"merge {merge!r} is not two tokens", where=_PREFIX + "merges")
    return left, right


def _surround(
    backend: tokenizers.Tokenizer, metadata: Mapping[str, Any], special_tokens: Mapping[str, str]
) -> None:
    """Puts what the file wants around texts, and two ends between two texts, as in XLM-RoBERTa."""
    begins = bool(metadata.get(_PREFIX + "add_bos_token", False))
    ends = bool(metadata.get(_PREFIX + "add_eos_token", True))
    bos, eos = special_tokens.get("bos_token"), special_tokens.get("eos_token")
    if (begins and bos is None) or (ends and eos is None):
        where = _PREFIX + ("add_bos_token" if begins and bos is None else "add_eos_token")
        raise NotReadable("there is no such token to add", where=where)
    first = [str(bos)] if begins else []
    last = [str(eos)] if ends else []
    around = Around([*first, "$A", *last], [*first, "$A", *last, *last, "$B", *last])
    put_around(backend, around, where=_PREFIX + "add_eos_token")


def _end_with(backend: tokenizers.Tokenizer, eos: str | None, *, has_middle: bool = False) -> None:
    """Makes whole texts, such as those to embed, end with the token `eos`.

    With `has_middle` it also stands between two texts.
    """
    where = _PREFIX + "add_eos_token"
    if eos is None:
        raise NotReadable("there is no end of text to add", where=where)
    middle = [eos] if has_middle else []
    around = Around(["$A", eos], ["$A", *middle, "$B:1", f"{eos}:1"])
    put_around(backend, around, where=where)


def _is_phi3(metadata: Mapping[str, Any], model: str) -> bool:
    """Whether control tokens include the white space after them; GGUF has no key for that."""
    return model == "llama" and metadata.get("general.architecture") == "phi3"


def _special_tokens(
    metadata: Mapping[str, Any], texts: Sequence[str], defaults: Mapping[str, int]
) -> dict[str, str]:
    special_tokens = {}
    for role, name in _ROLES.items():
        token_id = next(iter(_ids(metadata, texts, [name])), defaults.get(role))
        if token_id is not None and token_id < len(texts):
            special_tokens[role] = texts[token_id]
    return special_tokens


def _ids(metadata: Mapping[str, Any], texts: Sequence[str], names: Sequence[str]) -> list[int]:
    """The token ids with those names that are in the vocabulary."""
    ids = []
    for name in names:
        token_id = metadata.get(_PREFIX + name)
        if isinstance(token_id, int) and 0 <= token_id < len(texts):
            ids.append(token_id)
        elif token_id is not None:
            _logger.warning("%s%s = %.40r is no token: it is not used", _PREFIX, name, token_id)
    return ids
