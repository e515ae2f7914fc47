"""Replies in channels."""

from __future__ import annotations

import json

import pytest
from test_published_templates import TEMPLATES
from text_checkpoints import BACKEND, TextCheckpoint

from mrs.request import Message
from mrs.text.text_processor import TextProcessor, read_text_processor

NAMES = ["<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|return|>", "<|call|>"]
THOUGHT = "<|channel|>analysis<|message|>They greet.<|end|>"
ANSWER = "<|start|>assistant<|channel|>final<|message|>Hi \u00e9<|return|>"


@pytest.fixture(scope="module")
def processor() -> TextProcessor:
    settings = json.loads(BACKEND.to_str())
    first = max(token["id"] for token in settings["added_tokens"]) + 1
    for index, name in enumerate(NAMES):
        token = {**settings["added_tokens"][0], "id": first + index, "content": name}
        settings["added_tokens"].append(token)
    files = {
        "tokenizer.json": json.dumps(settings),
        "chat_template.jinja": TEMPLATES["gpt-oss"],
    }
    return read_text_processor(TextCheckpoint(files=files))


def shown(processor: TextProcessor, reply: str) -> str:
    decoder = processor.stream_decoder()
    ids = processor.tokenizer.encode(reply, allow_special=True)
    return "".join(map(decoder.push, ids))


def test_replies_end_with_return_and_not_with_a_part(processor: TextProcessor) -> None:
    ids = processor.tokenizer.control_ids
    assert {ids["<|return|>"], ids["<|call|>"]} <= processor.stop_ids
    assert ids["<|end|>"] not in processor.stop_ids


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        (THOUGHT + ANSWER, "<think>\nThey greet.\n</think>\n\nHi \u00e9"),
        (THOUGHT + "<|start|>assistant" + THOUGHT, "<think>\nThey greet.\n\nThey greet."),
        (ANSWER, "Hi \u00e9"),
        ("no parts at all", "no parts at all"),
        ("<|channel|>final", ""),
    ],
)
def test_parts_become_thoughts_and_an_answer(
    processor: TextProcessor, reply: str, text: str
) -> None:
    assert shown(processor, reply) == text


def test_thoughts_are_left_out_of_later_prompts(processor: TextProcessor) -> None:
    talk: list[Message] = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": shown(processor, THOUGHT + ANSWER)},
        {"role": "user", "content": "Bye"},
    ]
    prompt = processor.tokenizer.backend.decode(
        processor.prompt_ids(talk), skip_special_tokens=False
    )
    assert "They greet" not in prompt
    assert "<|start|>assistant<|channel|>final<|message|>Hi \u00e9<|end|>" in prompt
    talk[1]["content"] = shown(processor, THOUGHT)
    prompt = processor.tokenizer.backend.decode(
        processor.prompt_ids(talk), skip_special_tokens=False
    )
    assert "They greet" not in prompt
