"""Grammars with the tokenizers of files: byte level, SentencePiece, added and padding tokens."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mrs.grammar.compiler import GrammarCompiler
from mrs.grammar.mask import GrammarMask
from mrs.request import Grammar
from mrs.text.gguf_tokenizer import read_gguf_tokenizer
from mrs.text.template import ChatTemplate
from mrs.text.text_processor import TextProcessor
from mrs.text.tokenizer import Tokenizer

TEXT_TESTS = Path(__file__).parents[1] / "text"
sys.path.append(str(TEXT_TESTS))
RECORDED = json.loads((TEXT_TESTS / "sentencepiece_models.json").read_text())
PADDING = 70
PREFIX = "tokenizer.ggml."


def sentencepiece(name: str) -> Tokenizer:
    recorded: dict[str, Any] = RECORDED[name]
    return read_gguf_tokenizer(
        {
            "general.architecture": name,
            PREFIX + "model": "llama",
            PREFIX + "tokens": recorded["pieces"],
            PREFIX + "scores": recorded["scores"],
            PREFIX + "token_type": recorded["types"],
            PREFIX + "bos_token_id": 1,
            PREFIX + "eos_token_id": 2,
            PREFIX + "unknown_token_id": 0,
            PREFIX + "add_space_prefix": recorded["add_dummy_prefix"],
        }
    )


def byte_level() -> Tokenizer:
    from text_checkpoints import METADATA

    return read_gguf_tokenizer(METADATA)


TOKENIZERS = {
    "llama": lambda: sentencepiece("llama"),
    "gemma": lambda: sentencepiece("gemma"),
    "byte level": byte_level,
}


@pytest.fixture(params=TOKENIZERS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return TOKENIZERS[request.param]()


def compiler_of(tokenizer: Tokenizer) -> GrammarCompiler:
    vocab_size = tokenizer.backend.get_vocab_size() + PADDING
    return GrammarCompiler(tokenizer, vocab_size, tokenizer.end_ids)


def allowed(mask: GrammarMask, tokenizer: Tokenizer) -> np.ndarray:
    logits = np.zeros(tokenizer.backend.get_vocab_size() + PADDING, np.float32)
    mask(logits)
    return np.flatnonzero(np.isfinite(logits))


def decoded(tokenizer: Tokenizer, ids: list[int]) -> str:
    return b"".join(map(tokenizer.piece, ids)).decode()


@pytest.mark.parametrize(
    "text", ["true", "caf\u00e9 \u2603 \U0001f600", " two  spaces ", "<s></s><|im_end|>", "\n\n\tx"]
)
def test_a_text_is_written_with_allowed_tokens_alone(tokenizer: Tokenizer, text: str) -> None:
    """At each step some token; the bytes of all together are the text, then only the end."""
    grammar = Grammar("json_schema", json.dumps({"const": text}))
    mask = compiler_of(tokenizer).mask(grammar)
    written: list[int] = []
    while not mask.is_complete:
        choices = allowed(mask, tokenizer)
        assert len(choices)
        assert not tokenizer.end_ids & set(choices.tolist())
        longest = max(choices.tolist(), key=lambda i: len(tokenizer.piece(i)))
        mask.append(longest)
        forced = mask.forced_tokens()
        for token in forced:
            mask.append(token)
        written += [longest, *forced]
    assert json.loads(decoded(tokenizer, written)) == text


def test_a_space_at_the_start_of_a_grammar_stays(tokenizer: Tokenizer) -> None:
    """SentencePiece removes one from free text, which is there without a reason."""
    text = TextProcessor(tokenizer, ChatTemplate("{{ messages }}", name="x"), stop_ids=frozenset())
    mask = compiler_of(tokenizer).mask(Grammar("regex", " two"))
    decoder, written = text.stream_decoder(is_exact=True), ""
    while not mask.is_complete:
        token = int(allowed(mask, tokenizer)[-1])
        mask.append(token)
        written += decoder.push(token)
    assert written == " two"


def test_padding_and_control_tokens_are_never_allowed(tokenizer: Tokenizer) -> None:
    mask = compiler_of(tokenizer).mask(Grammar("regex", r"(?s:.)*"))
    choices = set(allowed(mask, tokenizer).tolist())
    assert max(choices) < tokenizer.backend.get_vocab_size()
    assert choices & set(tokenizer.control_ids.values()) <= tokenizer.end_ids
    assert len(choices) > 0.8 * tokenizer.backend.get_vocab_size()


def test_every_end_token_ends_a_reply(tokenizer: Tokenizer) -> None:
    compiler = GrammarCompiler(
        tokenizer, tokenizer.backend.get_vocab_size(), tokenizer.end_ids | {5}
    )
    for end in {5, *tokenizer.end_ids}:
        mask = compiler.mask(Grammar("regex", "a*"))
        mask.append(end)
        assert mask.is_complete


def test_a_model_without_an_end_token_ends_with_its_grammar(tokenizer: Tokenizer) -> None:
    compiler = GrammarCompiler(tokenizer, tokenizer.backend.get_vocab_size(), frozenset())
    mask = compiler.mask(Grammar("regex", "ab"))
    for token in [int(allowed(mask, tokenizer)[0])]:
        mask.append(token)
    while not mask.is_complete:
        mask.append(int(allowed(mask, tokenizer)[0]))


def test_logits_narrower_than_the_tokenizer(tokenizer: Tokenizer) -> None:
    """Some vision models have tokens that only stand for images."""
    vocab_size = tokenizer.backend.get_vocab_size() - 9
    mask = GrammarCompiler(tokenizer, vocab_size, tokenizer.end_ids).mask(Grammar("json_object"))
    logits = np.zeros(vocab_size, np.float32)
    mask(logits)
    assert np.isfinite(logits).any()


def test_forced_tokens_are_those_of_the_tokenizer(tokenizer: Tokenizer) -> None:
    text = "hello world, hello world"
    mask = compiler_of(tokenizer).mask(Grammar("regex", f"{text}|{text} again"))
    forced = mask.forced_tokens()
    expected = tokenizer.encode("\n" + text, allow_special=False)
    start = tokenizer.encode("\n", allow_special=False)
    assert forced
    assert expected[len(start) : len(start) + len(forced)] == forced
