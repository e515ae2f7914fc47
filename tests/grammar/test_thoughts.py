"""A grammar begins after the thought of a model that thinks."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mrs.grammar.compiler import GrammarCompiler
from mrs.grammar.thought import Thought, thought_after
from mrs.request import Grammar
from mrs.text.text_processor import TextProcessor, read_text_processor

sys.path.append(str(Path(__file__).parents[1] / "text"))
ANSWER = Grammar("regex", "yes|no")
HARMONY = ["<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|return|>", "<|call|>"]


def processor(template: str, added: Sequence[str] = (), *, special: bool = True) -> TextProcessor:
    from text_checkpoints import BACKEND, TextCheckpoint

    settings = json.loads(BACKEND.to_str())
    first = max(token["id"] for token in settings["added_tokens"]) + 1
    for index, name in enumerate(added):
        model = {**settings["added_tokens"][0], "id": first + index, "content": name}
        settings["added_tokens"].append({**model, "special": special})
    files = {
        "tokenizer.json": json.dumps(settings),
        "tokenizer_config.json": json.dumps({"bos_token": "<s>", "eos_token": "<|im_end|>"}),
        "chat_template.jinja": template,
    }
    return read_text_processor(TextCheckpoint(files=files))


def follows(text: TextProcessor, thought: Thought, reply: str) -> bool:
    """Whether the mask allows each token of a reply; forced tokens are compared, too."""
    tokenizer = text.tokenizer
    vocab_size = tokenizer.backend.get_vocab_size()
    mask = GrammarCompiler(tokenizer, vocab_size, text.stop_ids).mask(ANSWER, thought)
    for token in tokenizer.encode(reply, allow_special=True):
        logits = np.zeros(vocab_size, np.float32)
        mask(logits)
        if not np.isfinite(logits[token]):
            return False
        mask.append(token)
    return mask.is_complete


TEMPLATE = "{{ messages[0].content }}</think>"


@pytest.mark.few(10)
@pytest.mark.parametrize("special", [None, False, True])
@pytest.mark.parametrize(
    ("thought", "reply", "is_allowed"),
    [
        (Thought.NONE, "yes", True),
        (Thought.NONE, "<think>hm</think>\n\nyes", False),
        (Thought.POSSIBLE, "no", True),
        (Thought.POSSIBLE, "<think>\nhm, yes\n</think>\n\nno", True),
        (Thought.POSSIBLE, "<think>\nhm, yes\n</think>\n\nmaybe", False),
        (Thought.POSSIBLE, "hm</think>\n\nno", False),
        (Thought.POSSIBLE, "<think>hm<|im_end|>", False),
        (Thought.OPEN, "hm, <b> maybe\n</think>\n\nno", True),
        (Thought.OPEN, "no", False),
        (Thought.OPEN, "hm<|im_end|>", False),
    ],
)
def test_after_a_thought_in_tags(
    special: bool | None, thought: Thought, reply: str, is_allowed: bool
) -> None:
    """The tags are letters, added tokens, or control tokens."""
    added = [] if special is None else ["<think>", "</think>"]
    text = processor(TEMPLATE, added, special=bool(special))
    assert follows(text, thought, reply) is is_allowed


@pytest.mark.parametrize(
    ("reply", "is_allowed"),
    [
        ("<|channel|>final<|message|>yes", True),
        (
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>no",
            True,
        ),
        ("<|channel|>analysis<|message|>hm<|return|>", False),
        ("<|channel|>final<|message|>maybe", False),
        ("yes", False),
    ],
)
def test_in_the_channel_of_the_answer(reply: str, is_allowed: bool) -> None:
    text = processor(TEMPLATE, HARMONY)
    assert follows(text, Thought.CHANNELS, reply) is is_allowed


def test_what_a_prompt_says_of_thoughts() -> None:
    from test_published_templates import TEMPLATES

    question = [{"role": "user", "content": "Is it?"}]

    def found(text: TextProcessor, thinking: bool | None) -> Thought:
        return thought_after(text, text.prompt_ids(question, thinking=thinking), thinking)

    qwen = processor(TEMPLATES["qwen3"], ["<think>", "</think>"], special=False)
    assert found(qwen, None) is found(qwen, True) is Thought.POSSIBLE
    assert found(qwen, False) is Thought.NONE
    opened = processor("{{ messages[0].content }}</think><think>\n")
    assert found(opened, None) is Thought.OPEN
    assert found(processor(TEMPLATES["llama-3"]), None) is Thought.NONE
    assert found(processor(TEMPLATES["gpt-oss"], HARMONY), None) is Thought.CHANNELS
    assert thought_after(qwen, None, None) is Thought.NONE, "a text that is continued"


def test_after_the_thought_the_rest_is_forced() -> None:
    text = processor(TEMPLATE, ["<think>", "</think>"], special=False)
    tokenizer = text.tokenizer
    vocab_size = tokenizer.backend.get_vocab_size()
    grammar = replace(ANSWER, text="yes indeed")
    mask = GrammarCompiler(tokenizer, vocab_size, text.stop_ids).mask(grammar, Thought.OPEN)
    for token in tokenizer.encode("hm</think>", allow_special=True):
        mask.append(token)
    assert tokenizer.decode(mask.forced_tokens()).startswith("\n\nyes")
