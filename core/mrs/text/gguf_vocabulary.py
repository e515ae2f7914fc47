"""A tokenizer as metadata of a GGUF file: what `gguf_tokenizer.py` reads, inverted.

The tokenizer is read again from what was written, and must make the same tokens of sample texts.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any
from unicodedata import normalize

from mrs.errors import MrsError, Unsupported
from mrs.text.gguf_tokenizer import read_gguf_tokenizer
from mrs.text.pre_tokenizers import PreTokenization, named_pre_tokenizations
from mrs.text.text_processor import TextProcessor
from mrs.text.tokenizer import Tokenizer
from mrs.text.vocabulary import TokenType

_BYTE = re.compile("<0x[0-9A-F]{2}>")
_logger = logging.getLogger(__name__)

_PREFIX = "tokenizer.ggml."
_ROLES = {
    "bos_token_id": "bos_token",
    "eos_token_id": "eos_token",
    "unknown_token_id": "unk_token",
    "padding_token_id": "pad_token",
}
#: Keys of further tokens that end a reply.
_ENDS = ("eot_token_id", "eom_token_id")
_HINT = "the model can be quantized to UQFF files: -o FOLDER"

#: Texts that tell the rules of published tokenizers apart.
SAMPLES = (
    "Hello, world! It's 3.14159 o'clock; WE'LL see what they'd DON'T know.",
    "  two spaces,   three\n\nnewlines \r\n and\ttabs\n   \n\n\n end  ",
    "1 12 123 1234 12345 1234567 3,000,000.50 0x1F 10^-9 ½ ² Ⅷ ١٢٣",
    "def f(x):\n    return {'a': x[0] // 2, \"b\": x != None}  # comment\n\n\tpass",
    "Größe, naïve, œuvre, Žluťoučký kůň; ПРИВЕТ, мир! Καλημέρα κόσμε",
    "你好\uff0c世界。今天天气很好\uff01 こんにちは世界、カタカナ 안녕하세요 세계",
    "مرحبا بالعالم नमस्ते दुनिया สวัสดีชาวโลก שלום עולם",
    "🙂👩\u200d👩\u200d👧🇫🇷 e\u0301 \u00a0 \u200b ∑∫√ ←→ «quotes» … — \u2018single\u2019 “double”",
    "http://example.com/a?b=c&d=%20#e user@mail.org $100 50% #tag @name <b>x</b> ~`|\\^*+=",
    "CamelCaseWord HTTPServer snake_case kebab-case ALLCAPS xYz1a2b3",
)


def tokenizer_metadata(processor: TextProcessor, vocab_size: int) -> dict[str, Any]:
    """The keys of a tokenizer and its chat template, for a model of `vocab_size` embeddings.

    Raises Unsupported for a tokenizer whose tokens no GGUF file would give.
    """
    tokenizer = processor.tokenizer
    readable = list(_readable(tokenizer, vocab_size))  # few have the same words
    composed = [normalize("NFC", text) for text in SAMPLES]
    for samples in (SAMPLES, composed):
        for metadata, read in readable:
            if not _are_alike(tokenizer, read, samples):
                continue
            if samples is composed:
                _logger.warning(
                    "characters of several parts, such as e and an accent, may become other tokens "
                    "in the file than in the model"
                )
            return {**metadata, **_ends(processor), **_templates(processor)}
    raise Unsupported("the model's tokenizer has rules that no GGUF file can name", hint=_HINT)


def _readable(tokenizer: Tokenizer, vocab_size: int) -> Iterator[tuple[dict[str, Any], Tokenizer]]:
    """What may describe the tokenizer, and the tokenizer that a reader makes of it."""
    for metadata in _described(tokenizer, vocab_size):
        with suppress(MrsError):
            yield metadata, read_gguf_tokenizer(metadata)


def _are_alike(one: Tokenizer, other: Tokenizer, samples: Sequence[str]) -> bool:
    controls = "".join(f"{text} a" for text in one.control_ids)
    return (
        all(
            one.encode(text, allow_special=False) == other.encode(text, allow_special=False)
            for text in samples
        )
        and one.encode(controls, allow_special=True) == other.encode(controls, allow_special=True)
        and one.encode_prompt(samples[0]) == other.encode_prompt(samples[0])
        and all(one.piece(each) == other.piece(each) for each in _known_ids(one))
    )


def _known_ids(tokenizer: Tokenizer) -> Sequence[int]:
    return [*tokenizer.backend.get_vocab(with_added_tokens=True).values()]


def _described(tokenizer: Tokenizer, vocab_size: int) -> Iterator[dict[str, Any]]:
    """Metadata that may describe the tokenizer."""
    file = json.loads(tokenizer.backend.to_str())
    model = file["model"]
    if model.get("type") != "BPE":
        return
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    texts = _texts(tokenizer, vocab_size)
    common = {
        f"{_PREFIX}tokens": texts,
        **_special_ids(tokenizer),
        f"{_PREFIX}add_bos_token": _begins_with_bos(tokenizer),
    }
    if model.get("byte_fallback"):
        types = _types(tokenizer, texts, unknown=model.get("unk_token"), has_bytes=True)
        added = TokenType.USER_DEFINED
        spelled = [
            text.replace("\u2581", " ") if kind == added else text
            for text, kind in zip(texts, types, strict=True)
        ]
        for before in (True, False):
            yield {
                f"{_PREFIX}model": "llama",
                f"{_PREFIX}pre": "default",
                **common,
                f"{_PREFIX}tokens": spelled,  # added tokens match before spaces are rewritten
                f"{_PREFIX}scores": _scores(texts, merges),
                f"{_PREFIX}token_type": types,
                f"{_PREFIX}add_space_prefix": before,
            }
        return
    types = _types(tokenizer, texts)
    for name in _pre_tokenizers(tokenizer, ignores_merges=bool(model.get("ignore_merges"))):
        yield {
            f"{_PREFIX}model": "gpt2",
            f"{_PREFIX}pre": name,
            **common,
            f"{_PREFIX}token_type": types,
            f"{_PREFIX}merges": merges,
        }


def _texts(tokenizer: Tokenizer, vocab_size: int) -> list[str]:
    """The texts of all ids; those of embeddings without a token have names of their own."""
    count = max(vocab_size, max(_known_ids(tokenizer), default=-1) + 1)
    known = (tokenizer.text_of(token_id) for token_id in range(count))
    return [f"[PAD{i}]" if text is None else text for i, text in enumerate(known)]


def _types(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    *,
    unknown: str | None = None,
    has_bytes: bool = False,
) -> list[int]:
    special, added = tokenizer.control_ids, tokenizer.added_ids

    def type_of(token_id: int, text: str) -> TokenType:
        if tokenizer.text_of(token_id) is None:
            return TokenType.UNUSED
        if text == unknown:
            return TokenType.UNKNOWN
        if special.get(text) == token_id:
            return TokenType.CONTROL
        if added.get(text) == token_id:
            return TokenType.USER_DEFINED
        is_byte = has_bytes and _BYTE.fullmatch(text)
        return TokenType.BYTE if is_byte else TokenType.NORMAL

    return [int(type_of(token_id, text)) for token_id, text in enumerate(texts)]


def _scores(texts: Sequence[str], merges: Sequence[str]) -> list[float]:
    """Scores with the order of the merges: the first one that makes a token has the best."""
    ranks: dict[str, int] = {}
    for rank, merge in enumerate(merges):
        ranks.setdefault(merge.replace(" ", "", 1), rank)
    last = len(merges)
    return [-float(ranks.get(text, last)) for text in texts]


def _special_ids(tokenizer: Tokenizer) -> dict[str, int]:
    ids = {
        key: tokenizer.backend.token_to_id(tokenizer.special_tokens[role])
        for key, role in _ROLES.items()
        if role in tokenizer.special_tokens
    }
    return {f"{_PREFIX}{key}": each for key, each in ids.items() if each is not None}


def _begins_with_bos(tokenizer: Tokenizer) -> bool:
    bos = tokenizer.bos_id
    return bos is not None and tokenizer.encode_prompt("a")[:1] == [bos]


def _pre_tokenizers(tokenizer: Tokenizer, *, ignores_merges: bool) -> list[str]:
    """The names of the rules that make the same words of the samples; the most alike come first."""
    words = _words(tokenizer.backend.pre_tokenizer)
    alike: dict[PreTokenization, str] = {}
    for name, rules in named_pre_tokenizations():
        if rules not in alike and _words(rules.build()) == words:
            alike[rules] = name
    # A word of the vocabulary that no merge makes is rare: the samples decide.
    return [
        alike[rules] for rules in sorted(alike, key=lambda r: r.ignore_merges != ignores_merges)
    ]


def _words(pre_tokenizer: Any) -> list[list[str]]:
    if pre_tokenizer is None:
        return []
    return [[word for word, _ in pre_tokenizer.pre_tokenize_str(text)] for text in SAMPLES]


def _ends(processor: TextProcessor) -> dict[str, int]:
    """Tokens that end a reply, which nothing else of the file says."""
    further = sorted(processor.stop_ids - processor.tokenizer.end_ids)
    return {f"{_PREFIX}{key}": each for key, each in zip(_ENDS, further, strict=False)}


def _templates(processor: TextProcessor) -> Mapping[str, Any]:
    template = processor.template
    if template is None:
        return {}
    key = "tokenizer.chat_template"
    values: dict[str, Any] = {key: template.source}
    if template.with_tools is not template:
        values |= {f"{key}s": ["tool_use"], f"{key}.tool_use": template.with_tools.source}
    return values
