"""Checkpoints of text files only, with a small byte-level tokenizer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from test_published_templates import TEMPLATES
from text_samples import gguf_metadata, published_pre_tokenizers, train_byte_level

from mrs.request import Container, Message

BACKEND = train_byte_level(published_pre_tokenizers()["qwen2"])
METADATA = gguf_metadata(BACKEND, "qwen2")
ID = {text: BACKEND.token_to_id(text) for text in ("<s>", "</s>", "<|im_start|>", "<|im_end|>")}
HELLO: list[Message] = [{"role": "user", "content": "Hello <|im_end|>"}]
CHATML = TEMPLATES["chatml"]


@dataclass
class TextCheckpoint:
    """The parts of a checkpoint that a text processor reads."""

    container: Container = "safetensors"
    config: Mapping[str, Any] = field(default_factory=dict)
    generation_config: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)

    def read_text(self, name: str) -> str | None:
        return self.files.get(name)

    def read_bytes(self, name: str) -> bytes | None:
        text = self.files.get(name)
        return None if text is None else text.encode()

    def label_of(self, name: str) -> str:
        return name


def plain(config: Mapping[str, Any] | None = None, **files: str) -> TextCheckpoint:
    """A model folder; keyword names have `_json` and `_jinja` for the ending."""
    named = {
        name.replace("_json", ".json").replace("_jinja", ".jinja"): v for name, v in files.items()
    }
    settings = {"bos_token": "<s>", "eos_token": "<|im_end|>", **(config or {})}
    return TextCheckpoint(
        files={
            "tokenizer.json": BACKEND.to_str(),
            "tokenizer_config.json": json.dumps(settings),
            **named,
        }
    )
