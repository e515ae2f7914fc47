"""Tokenizers from GGUF metadata against llama.cpp reading the same file."""

from __future__ import annotations

import unicodedata
from pathlib import Path
from typing import Any

import gguf
import pytest
from test_gguf_sentencepiece import metadata_of
from text_samples import gguf_metadata, published_pre_tokenizers, texts, train_byte_level

from mrs.text.gguf_tokenizer import read_gguf_tokenizer

pytestmark = [pytest.mark.slow, pytest.mark.needs("llama_cpp")]

PUBLISHED = published_pre_tokenizers()
# Where llama.cpp departs from the published tokenizer.json: it composes no text, leaves marks out
# of the letters of these rules, and has only ASCII white space in those.
WITHOUT_MARKS = {"gpt-4o", "tekken"}
ASCII_SPACE = {"deepseek-coder", "deepseek-llm"}


# Rules without a tokenizer.json to compare with, and the vocabulary to apply them to.
OTHER_RULES = {"default": "gpt-2", "deepseek-llm": "deepseek-coder", "lfm2": "llama-bpe"}


def write_gguf(path: Path, metadata: dict[str, Any]) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    for name, value in metadata.items():
        if name == "general.architecture":
            continue
        if isinstance(value, bool):
            writer.add_bool(name, value)
        elif isinstance(value, int):
            writer.add_uint32(name, value)
        elif isinstance(value, str):
            writer.add_string(name, value)
        else:
            writer.add_array(name, value)
    for name in ("context_length", "embedding_length", "block_count", "feed_forward_length"):
        writer.add_uint32(f"llama.{name}", 32)
    writer.add_uint32("llama.attention.head_count", 4)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def is_comparable(text: str, name: str) -> bool:
    if "\x00" in text or "\u2581" in text or unicodedata.normalize("NFC", text) != text:
        return False
    if name in WITHOUT_MARKS and any(unicodedata.category(c).startswith("M") for c in text):
        return False
    return name not in ASCII_SPACE or not {"\u3000", "\u00a0"} & set(text)


@pytest.mark.parametrize("name", [*sorted(PUBLISHED), *OTHER_RULES, "llama", "gemma"])
def test_same_ids_as_llama_cpp(tmp_path: Path, name: str) -> None:
    if name in ("llama", "gemma"):
        metadata = metadata_of(name)
    else:
        metadata = gguf_metadata(
            train_byte_level(PUBLISHED[OTHER_RULES.get(name, name)]), name, padding=0
        )
        metadata["tokenizer.ggml.add_bos_token"] = False
    path = tmp_path / "vocabulary.gguf"
    write_gguf(path, metadata)
    import llama_cpp

    reference = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    ours = read_gguf_tokenizer(metadata)
    compared = 0
    for text in texts(1000):
        if not is_comparable(text, name):
            continue
        for special in (True, False):
            expected = reference.tokenize(text.encode(), add_bos=False, special=special)
            assert ours.encode(text, allow_special=special) == expected, text
            compared += 1
    assert compared > 500
