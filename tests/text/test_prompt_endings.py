"""Prompts that end with the last message, or in its text, beside those of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from mrs.request import Message, ModelSource
from mrs.source.find import open_checkpoint
from mrs.text.text_processor import PromptEnding, read_text_processor
from support.model_files import DEMO

TRL = Path(
    pytest.importorskip(
        "trl", reason="trl is not installed: pip install --no-deps trl==1.16.0"
    ).__file__
).parent
TEMPLATES = [
    path
    for path in sorted((TRL / "chat_templates").glob("*.jinja"))
    if not path.stem.endswith("_training")  # say what a loss counts, and render the same
]
#: Templates that take contents as lists of parts alone.
OF_PARTS = ("idefics3", "llava_next", "smolvlm")
CONVERSATION: list[Message] = [
    {"role": "user", "content": "What is a KV cache?"},
    {"role": "assistant", "content": "It keeps the keys"},
]


def ids(template: Path, ending: PromptEnding) -> list[int]:
    checkpoint = open_checkpoint(ModelSource(str(DEMO), "safetensors"))
    text = read_text_processor(checkpoint, jinja_explicit=str(template))
    return text.prompt_ids(CONVERSATION, ending=ending)


@pytest.fixture(scope="module")
def reference() -> Any:
    return AutoTokenizer.from_pretrained(DEMO)


@pytest.mark.few(8)
@pytest.mark.values
@pytest.mark.parametrize("ending", ["message", "continued"])
@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.stem)
def test_prompts_end_as_those_of_transformers(
    reference: Any, template: Path, ending: PromptEnding
) -> None:
    reference.chat_template = template.read_text()
    conversation: Any = CONVERSATION
    if template.stem in OF_PARTS:
        conversation = [
            {"role": each["role"], "content": [{"type": "text", "text": each["content"]}]}
            for each in CONVERSATION
        ]
    rendered = reference.apply_chat_template(
        conversation, tokenize=False, continue_final_message=ending == "continued"
    )
    expected = reference(rendered, add_special_tokens=False).input_ids
    assert ids(template, ending) == expected


def test_the_text_of_a_message_without_a_template_is_continued() -> None:
    checkpoint = open_checkpoint(ModelSource(str(DEMO), "safetensors"))
    text = read_text_processor(checkpoint)
    text.template = None
    continued = text.prompt_ids(CONVERSATION, ending="continued")
    assert continued == text.encode_raw("What is a KV cache?\nIt keeps the keys")
