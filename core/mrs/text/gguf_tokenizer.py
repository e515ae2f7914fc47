"""A tokenizer from GGUF metadata alone."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from mrs.errors import NotReadable, Unsupported
from mrs.text.backend import backend_errors
from mrs.text.pre_tokenizers import PreTokenization, find_pre_tokenization
from mrs.text.tokenizer import Tokenizer

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


class TokenType(IntEnum):
    """The values of `tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


def read_gguf_tokenizer(metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer that a GGUF file's metadata describes.

    Raises NotReadable if a key is missing or contradicts another one, and Unsupported for an
    unknown tokenizer model or pre-tokenizer.
    """
    model = metadata.get(_PREFIX + "model")
    vocabulary = _Vocabulary(metadata)
    if model == "gpt2":
        pre_tokenization = find_pre_tokenization(str(metadata.get(_PREFIX + "pre", "default")))
        backend = _byte_level_backend(vocabulary, metadata, pre_tokenization)
        add_bos, default_ids = pre_tokenization.add_bos, {}
    elif model == "llama":
        scores = _array(metadata, "scores", float, len(vocabulary.texts))
        merges = list(_merges_by_score(vocabulary, scores))
        backend = _sentencepiece_backend(vocabulary, metadata, merges)
        add_bos, default_ids = True, {"bos_token": 1, "eos_token": 2, "unk_token": 0}
    elif model == "bert":
        from mrs.text.gguf_word_piece import word_piece_backend

        backend = word_piece_backend(metadata, vocabulary.texts, vocabulary.types)
        add_bos, default_ids = None, {}
    elif model == "gemma4":
        merges = [_pair(merge) for merge in _array(metadata, "merges", str)]
        backend = _sentencepiece_backend(vocabulary, metadata, merges)
        add_bos, default_ids = True, {}
    else:
        raise Unsupported(
            f"tokenizer model {model!r} of the GGUF file", hint="give tokenizer.json with -t"
        )
    if add_bos is not None:
        add_bos = bool(metadata.get(_PREFIX + "add_bos_token", add_bos))
    _add_tokens(backend, vocabulary, strips_after_control=_is_phi3(metadata, model))
    special_tokens = _special_tokens(metadata, vocabulary.texts, default_ids)
    if metadata.get(_PREFIX + "add_eos_token") and model != "bert":
        _end_with(backend, special_tokens.get("eos_token"))
    return Tokenizer(
        backend,
        special_tokens=special_tokens,
        add_bos=add_bos,
        end_ids=_ids(metadata, vocabulary.texts, ("eos_token_id", "eot_token_id", "eom_token_id")),
    )


class _Vocabulary:
    """Token texts and types by id."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self.texts: list[str] = _array(metadata, "tokens", str)
        self.types: list[int] = [TokenType.NORMAL] * len(self.texts)
        if _PREFIX + "token_type" in metadata:
            self.types = _array(metadata, "token_type", int, len(self.texts))

    def ids_by_text(self) -> dict[str, int]:
        """The first id of each text."""
        last_first = range(len(self.texts) - 1, -1, -1)
        return {self.texts[token_id]: token_id for token_id in last_first}

    def of_types(self, *types: TokenType) -> list[str]:
        return [text for text, kind in zip(self.texts, self.types, strict=True) if kind in types]


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


def _byte_level_backend(
    vocabulary: _Vocabulary, metadata: Mapping[str, Any], pre_tokenization: PreTokenization
) -> tokenizers.Tokenizer:
    import tokenizers
    from tokenizers import decoders, normalizers

    merges = [_pair(merge) for merge in _array(metadata, "merges", str)]
    model = _bpe(vocabulary, merges, ignore_merges=pre_tokenization.ignore_merges)
    backend = tokenizers.Tokenizer(model)
    if pre_tokenization.nfc:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenization.build()
    backend.decoder = decoders.ByteLevel()
    return backend


def _bpe(
    vocabulary: _Vocabulary, merges: list[tuple[str, str]], **settings: Any
) -> tokenizers.models.BPE:
    from tokenizers import models

    with backend_errors("merges and tokens disagree", where=_PREFIX + "merges"):
        return models.BPE(vocab=vocabulary.ids_by_text(), merges=merges, **settings)


def _pair(merge: str) -> tuple[str, str]:
    left, space, right = merge.partition(" ")
    if not (left and space and right):
        raise NotReadable(f"merge {merge!r} is not two tokens", where=_PREFIX + "merges")
    return left, right


def _sentencepiece_backend(
    vocabulary: _Vocabulary, metadata: Mapping[str, Any], merges: list[tuple[str, str]]
) -> tokenizers.Tokenizer:
    import tokenizers
    from tokenizers import decoders, normalizers

    unknown = vocabulary.of_types(TokenType.UNKNOWN)
    backend = tokenizers.Tokenizer(
        _bpe(
            vocabulary,
            merges,
            unk_token=unknown[0] if unknown else None,
            fuse_unk=True,
            byte_fallback=bool(vocabulary.of_types(TokenType.BYTE)),
        )
    )
    spaces = normalizers.Replace(" ", "▁")
    strip = []
    if metadata.get(_PREFIX + "add_space_prefix", True):
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces])
        strip = [decoders.Strip(" ", 1, 0)]
    else:
        backend.normalizer = spaces
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return backend


def _merges_by_score(vocabulary: _Vocabulary, scores: Sequence[float]) -> Iterator[tuple[str, str]]:
    """The merges that make BPE join pieces as SentencePiece does: best score first.

    Each split of a piece into two pieces is a merge; the longest left part comes first.
    """
    rows = zip(scores, vocabulary.texts, vocabulary.types, strict=True)
    scored = [(score, text) for score, text, kind in rows if kind == TokenType.NORMAL]
    scored.sort(key=lambda row: -row[0])
    pieces = {text for _, text in scored}
    for _, text in scored:
        for cut in range(len(text) - 1, 0, -1):
            left, right = text[:cut], text[cut:]
            if left in pieces and right in pieces:
                yield left, right


def _add_tokens(
    backend: tokenizers.Tokenizer, vocabulary: _Vocabulary, *, strips_after_control: bool
) -> None:
    """Makes control and user-defined tokens match in text before all other rules."""
    from tokenizers import AddedToken

    control = vocabulary.of_types(TokenType.CONTROL, TokenType.UNKNOWN)
    keeps_space = {"<unk>", "<s>", "<|endoftext|>"} if strips_after_control else set(control)
    backend.add_special_tokens(
        [AddedToken(t, normalized=False, rstrip=t not in keeps_space) for t in control if t]
    )
    backend.add_tokens(
        [AddedToken(t, normalized=False) for t in vocabulary.of_types(TokenType.USER_DEFINED) if t]
    )


def _end_with(backend: tokenizers.Tokenizer, eos: str | None) -> None:
    """Makes whole texts, such as those to embed, end with the token `eos`."""
    from tokenizers import processors

    token_id = None if eos is None else backend.token_to_id(eos)
    if token_id is None:
        raise NotReadable("there is no end of text to add", where=_PREFIX + "add_eos_token")
    try:
        backend.post_processor = processors.TemplateProcessing(
            single=["$A", eos], pair=["$A", "$B:1", f"{eos}:1"], special_tokens=[(eos, token_id)]
        )
    except ValueError as error:  # a name that means something in templates
        raise NotReadable(
            f"{eos!r} cannot be put after texts", where=_PREFIX + "add_eos_token"
        ) from error


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
    found = []
    for name in names:
        token_id = metadata.get(_PREFIX + name)
        if isinstance(token_id, int) and 0 <= token_id < len(texts):
            found.append(token_id)
        elif token_id is not None:
            _logger.warning("%s%s = %.40r is no token: it is not used", _PREFIX, name, token_id)
    return found
