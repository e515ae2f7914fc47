"""Tells the formats of tokenizers apart by content, and reads each."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from mrs.errors import NotReadable, Unsupported
from mrs.source.tokenizer_files import MERGES
from mrs.text.tokenizer_settings import TokenizerSettings
from mrs.text.vocabulary import Around, Described, SpaceRules, TokenType, Vocabulary
from mrs.text.vocabulary_files.byte_pairs import read_byte_pairs
from mrs.text.vocabulary_files.sentencepiece_model import read_sentencepiece
from mrs.text.vocabulary_files.tekken import read_tekken
from mrs.text.vocabulary_files.tiktoken_ranks import read_tiktoken
from mrs.text.vocabulary_files.word_pieces import read_word_pieces

ReadBytes = Callable[[str], bytes | None]
#: An object or a list, but no vocab.txt that begins with a token in brackets.
_JSON = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:\{|\[(?![A-Za-z]))")
_RANK = re.compile(rb"\s*[A-Za-z0-9+/]+={0,2} \d+\s*[\r\n]")
#: The first byte of a SentencePiece model: the key of its first piece.
_PIECE = b"\n"
#: Classes that read a SentencePiece model as it is, and add a bos token if nothing else is said.
_SENTENCEPIECE = (
    *("LlamaTokenizer", "CodeLlamaTokenizer", "GemmaTokenizer", "InternLM2Tokenizer"),
    *("InternLM3Tokenizer", "MistralCommonBackend", "MistralCommonTokenizer"),
    *("PreTrainedTokenizer", "TokenizersBackend"),
)
#: Those of them for which `legacy` is false unless the settings say otherwise.
_LEGACY_FALSE = ("LlamaTokenizer", "CodeLlamaTokenizer")


def is_tokenizer_json(data: bytes) -> bool:
    """Whether a file is JSON, but none of the formats of this folder."""
    is_json = _JSON.match(data) is not None
    return is_json and not (_has_keys(data, "config", "vocab") or _is_ids(data))


def read_vocabulary_file(
    name: str, data: bytes, read: ReadBytes, settings: TokenizerSettings
) -> Described:
    """The tokenizer in a file, with `read` for the ones beside it.

    Raises NotReadable for a malformed file, and Unsupported for a class of tokenizers whose rules
    are not known.
    """
    rules: dict[str, Any] = {
        "class_name": settings.class_name,
        "model_type": settings.model_type,
        "where": name,
    }
    try:
        if _JSON.match(data):
            if _is_ids(data):
                return read_byte_pairs(data, read(MERGES), settings.config, **rules)
            return read_tekken(data, where=name)
        if _RANK.match(data):
            return read_tiktoken(data, settings.added_texts, **rules)
        if data.startswith(_PIECE):
            return _sentencepiece(data, settings, name)
        return read_word_pieces(data, settings.config, **rules)
    except UnicodeDecodeError as error:
        raise NotReadable("no known format of tokenizers", where=name) from error


def _has_keys(data: bytes, *names: str) -> bool:
    import msgspec

    try:
        fields = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, RecursionError):
        return False
    return all(name in fields for name in names)


def _is_ids(data: bytes) -> bool:
    """Whether a file is a JSON object of numbers, as vocab.json is."""
    import msgspec

    try:
        return bool(msgspec.json.decode(data, type=dict[str, int]))
    except (msgspec.MsgspecError, RecursionError):
        return False


def _sentencepiece(data: bytes, settings: TokenizerSettings, where: str) -> Described:
    name = settings.class_name
    short = None if name is None else name.rpartition(".")[2]
    if short == "XLMRobertaTokenizer":
        return _xlm_roberta(read_sentencepiece(data, prefix="always", where=where))
    if short is not None and short not in _SENTENCEPIECE:
        raise Unsupported(
            f"{name} is not known, which may change what the file says",
            where=where,
            hint=f"known are XLMRobertaTokenizer, {', '.join(_SENTENCEPIECE)}; or give the model's "
            "tokenizer.json with -t",
        )
    legacy = settings.flag("legacy")
    is_legacy = short not in _LEGACY_FALSE if legacy is None else legacy
    prefix = "always" if is_legacy else "first"
    if settings.flag("add_prefix_space") is False:
        prefix = "never"
    described = read_sentencepiece(data, prefix=prefix, where=where)
    vocabulary = described.vocabulary.renamed(settings.added_texts)
    roles = {
        role: vocabulary.texts[described.vocabulary.ids_by_text[text]]
        for role, text in described.special_tokens.items()
    }
    return replace(described, vocabulary=vocabulary, special_tokens=roles, add_bos=True)


def _xlm_roberta(described: Described) -> Described:
    """The class has four tokens of its own before the pieces, and one after them."""
    pieces = described.vocabulary
    control, unknown = TokenType.CONTROL, TokenType.UNKNOWN
    vocabulary = Vocabulary(
        ["<s>", "<pad>", "</s>", "<unk>", *pieces.texts[3:], "<mask>"],
        [control, control, control, unknown, *pieces.types[3:], control],
        [0.0, 0.0, 0.0, 0.0, *pieces.scores[3:], 0.0],
    )
    assert isinstance(described.rules, SpaceRules)
    return replace(
        described,
        vocabulary=vocabulary,
        special_tokens={
            "bos_token": "<s>",
            "cls_token": "<s>",
            "eos_token": "</s>",
            "sep_token": "</s>",
            "unk_token": "<unk>",
            "pad_token": "<pad>",
            "mask_token": "<mask>",
        },
        around=Around(["<s>", "$A", "</s>"], ["<s>", "$A", "</s>", "</s>", "$B", "</s>"]),
    )
