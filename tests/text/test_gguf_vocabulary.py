"""Tokenizers as metadata of GGUF files: who reads them makes the same tokens."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import pytest
from published_packages import fetched
from test_gguf_sentencepiece import MODELS, metadata_of
from text_samples import published_pre_tokenizers, texts, train_byte_level

from mrs.errors import Unsupported
from mrs.text.gguf_tokenizer import read_gguf_tokenizer
from mrs.text.gguf_vocabulary import tokenizer_metadata
from mrs.text.hf_tokenizer import read_hf_tokenizer
from mrs.text.pre_tokenizers import find_pre_tokenization
from mrs.text.template import ChatTemplate
from mrs.text.text_processor import TextProcessor
from mrs.text.tokenizer import Tokenizer

SECTIONS = published_pre_tokenizers()
PREFIX = "tokenizer.ggml."
#: Package -> model and rules in GGUF files; the rules of others have no name there.
PUBLISHED = {
    "deepseek_v3": ("gpt2", "deepseek-v3"),
    "gemma3": ("llama", "default"),
    "gptoss": ("gpt2", "gpt-4o"),
    "llama2": ("llama", "default"),
    "llama3_1": ("gpt2", "llama-bpe"),
    "qwen3": ("gpt2", "qwen2"),
}


def byte_level(rules: str, **changed: Any) -> Tokenizer:
    """A tokenizer with the published rules that GGUF files call `rules`.

    `changed` are sections of its tokenizer.json.
    """
    backend = train_byte_level({**SECTIONS[rules], **changed})
    special = {"bos_token": "<s>", "eos_token": "<|im_end|>"}
    return Tokenizer(backend, special_tokens=special, add_bos=True)


def written(tokenizer: Tokenizer, vocab_size: int = 0) -> Mapping[str, Any]:
    processor = TextProcessor(tokenizer, None, stop_ids=tokenizer.end_ids)
    return tokenizer_metadata(processor, vocab_size)


def check(tokenizer: Tokenizer, metadata: Mapping[str, Any]) -> None:
    read = read_gguf_tokenizer(metadata)
    for text in texts(200):
        if "\u2581" in text:  # a sign for spaces, which added tokens match as spaces here
            continue
        assert read.encode(text, allow_special=True) == tokenizer.encode(text, allow_special=True)
        plain = tokenizer.encode(text, allow_special=False)
        assert read.encode(text, allow_special=False) == plain
        assert read.decode(plain) == tokenizer.decode(plain)
    assert read.encode_prompt("a") == tokenizer.encode_prompt("a")
    assert (read.bos_id, read.eos_id) == (tokenizer.bos_id, tokenizer.eos_id)
    assert read.end_ids == tokenizer.end_ids


@pytest.mark.parametrize("rules", SECTIONS)
def test_byte_level(rules: str) -> None:
    tokenizer = byte_level(rules)
    metadata = written(tokenizer)
    assert metadata[PREFIX + "model"] == "gpt2"
    named = find_pre_tokenization(metadata[PREFIX + "pre"])
    assert named.steps == find_pre_tokenization(rules).steps
    check(tokenizer, metadata)


@pytest.mark.parametrize("name", MODELS)
def test_sentencepiece(name: str) -> None:
    """Merges have no scores: those that are written have their order."""
    tokenizer = read_gguf_tokenizer(metadata_of(name))
    metadata = written(tokenizer)
    assert metadata[PREFIX + "model"] == "llama"
    assert metadata[PREFIX + "add_space_prefix"] == (name == "llama")
    check(tokenizer, metadata)


def test_embeddings_without_a_token_have_names() -> None:
    tokenizer = byte_level("qwen2")
    size = tokenizer.backend.get_vocab_size()
    metadata = written(tokenizer, size + 3)
    assert metadata[PREFIX + "tokens"][size:] == [f"[PAD{size + i}]" for i in range(3)]
    assert metadata[PREFIX + "token_type"][size:] == [5, 5, 5]


def test_templates_and_further_ends() -> None:
    tokenizer = byte_level("qwen2")
    template = ChatTemplate("plain", name="x", source_with_tools="with tools")
    processor = TextProcessor(tokenizer, template, stop_ids=tokenizer.end_ids | {7})
    metadata = tokenizer_metadata(processor, 0)
    assert metadata["tokenizer.chat_template"] == "plain"
    assert metadata["tokenizer.chat_template.tool_use"] == "with tools"
    assert read_gguf_tokenizer(metadata).end_ids == tokenizer.end_ids | {7}


def test_rules_that_compose_are_named_once(caplog: pytest.LogCaptureFixture) -> None:
    """GGUF files have no name for Qwen's rules without composition."""
    tokenizer = byte_level("qwen2", normalizer=None)
    with caplog.at_level(logging.WARNING):
        metadata = written(tokenizer)
    assert metadata[PREFIX + "pre"] == "qwen2"
    assert [record.message.split(",")[0] for record in caplog.records] == [
        "characters of several parts"
    ]


def test_rules_without_a_name_are_refused() -> None:
    tokenizer = byte_level("qwen2", normalizer={"type": "Lowercase"})
    with pytest.raises(Unsupported, match="no GGUF file can name"):
        written(tokenizer)


@pytest.mark.full
@pytest.mark.parametrize("name", PUBLISHED)
def test_published(name: str, request: pytest.FixtureRequest) -> None:
    folder = fetched(name, request.config.cache.mkdir("published-tokenizers"))
    read = {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}.get
    tokenizer = read_hf_tokenizer(read)
    metadata = written(tokenizer)
    assert (metadata[PREFIX + "model"], metadata[PREFIX + "pre"]) == PUBLISHED[name]
    check(tokenizer, metadata)
