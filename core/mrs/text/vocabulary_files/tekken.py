"""Mistral's `tekken.json`: special tokens first, then tokens of bytes by rank."""

from __future__ import annotations

import binascii
from collections.abc import Sequence
from typing import Any, TypedDict

from mrs.errors import NotReadable
from mrs.text.pre_tokenizers import PreTokenization
from mrs.text.vocabulary import Described
from mrs.text.vocabulary_files.byte_ranks import described_ranks

_ROLES = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
_FILLER = "<SPECIAL_{}>"
#: The special tokens of files that list none, which are those of the first two tekkens.
_UNLISTED = (
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
    *("[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]"),
    *("[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
    "[TOOL_CONTENT]",
)


class _Config(TypedDict):
    pattern: str
    default_vocab_size: int
    default_num_special_tokens: int


class _Token(TypedDict):
    rank: int
    token_bytes: str


class _Special(TypedDict):
    rank: int
    token_str: str


class _Required(TypedDict):
    config: _Config
    vocab: list[_Token]


class _Tekken(_Required, total=False):
    special_tokens: list[_Special] | None


def read_tekken(data: bytes, *, where: str) -> Described:
    """The tokenizer in a tekken file. Raises NotReadable if it is malformed."""
    import msgspec

    try:
        file: _Tekken = msgspec.json.decode(data, type=_Tekken)
        special, tokens = _special(file), _tokens(file)
    except (msgspec.MsgspecError, ValueError) as error:
        raise NotReadable(f"not a tekken file: {error}", where=where) from error
    rules = PreTokenization((file["config"]["pattern"],), ignore_merges=True, add_bos=True)
    return described_ranks(tokens, rules, before=special, roles=_ROLES, where=where)


def _special(file: Any) -> list[str]:
    """The special tokens by id, with a filler for each that has no name."""
    listed: Sequence[_Special] | None = file.get("special_tokens")
    rows = [(row["rank"], row["token_str"]) for row in listed or ()]
    if listed is None:
        rows = list(enumerate(_UNLISTED))
    if sorted(rank for rank, _ in rows) != list(range(len(rows))):
        raise ValueError("the ranks of its special tokens have gaps")
    count = file["config"]["default_num_special_tokens"]
    if len(rows) > count:
        raise ValueError(f"{len(rows)} special tokens, but default_num_special_tokens is {count}")
    named = [text for _, text in sorted(rows)]
    return named + [_FILLER.format(i) for i in range(len(named), count)]


def _tokens(file: Any) -> list[bytes]:
    """The tokens by rank, as many as the model has."""
    config, rows = file["config"], file["vocab"]
    count = config["default_vocab_size"] - config["default_num_special_tokens"]
    if not 0 <= count <= len(rows):
        raise ValueError(f"{len(rows)} tokens, but default_vocab_size asks for {count}")
    rows = rows[:count]
    if any(row["rank"] != rank for rank, row in enumerate(rows)):
        raise ValueError("its tokens are not in the order of their ranks")
    return [binascii.a2b_base64(row["token_bytes"]) for row in rows]
