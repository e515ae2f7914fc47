# ruff: noqa: RUF001 - letters of other scripts are the point here
"""Deterministic texts that tokenizers disagree on, and small vocabularies trained on them."""

from __future__ import annotations

import json
import random
import unicodedata
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, trainers
from tokenizers.pre_tokenizers import ByteLevel

WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "lazy",
    "dogs",
    "It's",
    "they'll",
    "WE'RE",
    "don't",
    "I'M",
    "naïve",
    "café",
    "résumé",
    "Straße",
    "größer",
    "Ångström",
    "привет",
    "мир",
    "как",
    "дела",
    "Ёлка",
    "γειά",
    "σου",
    "κόσμε",
    "שלום",
    "עולם",
    "مرحبا",
    "بالعالم",
    "नमस्ते",
    "दुनिया",
    "สวัสดีชาวโลก",
    "你好世界",
    "今天天气很好",
    "こんにちは",
    "世界",
    "カタカナ",
    "안녕하세요",
    "세계",
    "tiếng",
    "Việt",
    "phở",
    "iPhone",
    "HTTPServer",
    "snake_case",
    "camelCase",
    "x1y2",
    "3.14159",
    "1234567",
    "12",
    "2024-06-01",
    "0xFF",
    "½",
    "Ⅻ",
    "²",
]
SYMBOLS = [
    "!",
    "?!",
    "...",
    "—",
    "==",
    "->",
    "()",
    "{\n",
    "}\n",
    "#",
    "@",
    "$9",
    "€",
    "%",
    "/",
    "//\n",
]
EMOJI = ["😀", "👍🏽", "👩‍👩‍👧", "🇫🇷", "❤️", "🏴󠁧󠁢󠁥󠁮󠁧󠁿"]
SPACES = [
    " ",
    " ",
    " ",
    " ",
    "  ",
    "   ",
    "\n",
    "\n\n",
    " \n ",
    "\t",
    "\r\n",
    "\u00a0",
    "\u3000",
    "",
]
RARE = ["\u0301", "e\u0301", "\ufeff", "\u200d", "\x00", "\x7f", "ﬁ", "𝔘", "\u2581", "Ġ"]
CONTROL = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<s>", "</s>", "<unk>"]
USER_DEFINED = ["<think>", "</think>", "<tool_call>"]


def texts(count: int, seed: int = 0, *, special: bool = True) -> list[str]:
    """Strings of mixed scripts, emoji, white space runs and, if `special`, token spellings."""
    chooser = random.Random(seed)
    kinds = [(WORDS, 12), (SYMBOLS, 4), (EMOJI, 1), (RARE, 1)]
    if special:
        kinds += [(CONTROL, 1), (USER_DEFINED, 1)]
    pools, weights = zip(*kinds, strict=True)
    found = ["", " ", "\n", "   \n\n  ", *CONTROL[: 2 if special else 0]]
    while len(found) < count:
        parts = []
        for pool in chooser.choices(pools, weights, k=chooser.randint(1, 14)):
            parts += [chooser.choice(pool), chooser.choice(SPACES)]
        found.append("".join(parts))
    return found


def composed(strings: list[str]) -> list[str]:
    return [unicodedata.normalize("NFC", text) for text in strings]


def train_byte_level(sections: dict[str, Any]) -> Tokenizer:
    """A byte-level BPE tokenizer of about 900 entries.

    `sections` are the `pre_tokenizer`, and where there are any the `normalizer` and
    `ignore_merges`, of a tokenizer.json.
    """
    empty = json.loads(Tokenizer(models.BPE(ignore_merges="ignore_merges" in sections)).to_str())
    empty["pre_tokenizer"] = sections["pre_tokenizer"]
    empty["normalizer"] = sections.get("normalizer")
    tokenizer = Tokenizer.from_str(json.dumps(empty))
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=900, initial_alphabet=ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(texts(400, seed=1, special=False), trainer)
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in CONTROL])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in USER_DEFINED])
    return tokenizer


def published_pre_tokenizers() -> dict[str, dict[str, Any]]:
    """Sections of published tokenizer.json files by their name in GGUF."""
    path = Path(__file__).with_name("published_pre_tokenizers.json")
    published: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    del published["_"]
    return published


def gguf_metadata(tokenizer: Tokenizer, pre: str, padding: int = 3) -> dict[str, Any]:
    """What llama.cpp's converter writes for a byte-level BPE tokenizer.

    Tokens by id with their types, unused rows of the embedding as `[PADn]`, merges as text.
    """
    settings = json.loads(tokenizer.to_str())
    texts_by_id = {i: text for text, i in tokenizer.get_vocab(with_added_tokens=True).items()}
    added = {token["id"]: token for token in settings["added_tokens"]}
    size = len(texts_by_id) + padding
    tokens, types = [], []
    for token_id in range(size):
        tokens.append(texts_by_id.get(token_id, f"[PAD{token_id}]"))
        kind = 5 if token_id not in texts_by_id else 1
        if token_id in added:
            kind = 3 if added[token_id]["special"] else 4
        types.append(kind)
    merges = settings["model"]["merges"]
    return {
        "general.architecture": "qwen2",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": [" ".join(merge) for merge in merges],
        "tokenizer.ggml.eos_token_id": tokens.index("<|im_end|>"),
        "tokenizer.ggml.bos_token_id": tokens.index("<|endoftext|>"),
        "tokenizer.ggml.padding_token_id": tokens.index("<|endoftext|>"),
    }
