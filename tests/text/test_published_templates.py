"""The templates of the model families as published, with tools left out, byte for byte.

What the families' documentation shows is written out below; transformers renders each template as
well. `SYSTEM` stands for how a format shows a system message, and for a refusal where None.
"""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest
import transformers.utils.chat_template_utils as reference

from mrs.errors import UsageError
from mrs.request import Message
from mrs.text import template_process
from mrs.text.template import ChatTemplate

TEMPLATES = {
    path.stem: path.read_text(encoding="utf-8")
    for path in sorted(Path(__file__).with_name("templates").glob("*.jinja"))
}
SPECIAL = {"bos_token": "<bos>", "eos_token": "<eos>"}
SYSTEM: Message = {"role": "system", "content": "You are terse."}
TALK: list[Message] = [
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": " Hi & <b>there</b> "},
    {"role": "user", "content": "Größe \U0001f600?"},
]
REFUSE_SYSTEM = {"mistral-v0.1", "gemma", "starcoder2-instruct"}
THINKING = {"qwen3", "smollm3", "deepseek-v3.1"}

CHATML_TALK = (
    "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n Hi & <b>there</b> <|im_end|>\n"
    "<|im_start|>user\nGröße \U0001f600?<|im_end|>\n<|im_start|>assistant\n"
)
CHATML = "<|im_start|>system\nYou are terse.<|im_end|>\n" + CHATML_TALK
LLAMA_3_TALK = (
    "<|start_header_id|>user<|end_header_id|>\n\nHello<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\nHi & <b>there</b><|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nGröße \U0001f600?<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n"
)
GEMMA_TALK = (
    "Hello<end_of_turn>\n<start_of_turn>model\nHi & <b>there</b><end_of_turn>\n"
    "<start_of_turn>user\nGröße \U0001f600?<end_of_turn>\n<start_of_turn>model\n"
)
SMOLLM3_HEAD = (
    "<|im_start|>system\n## Metadata\n\nKnowledge Cutoff Date: June 2025\n"
    "Today Date: 05 March 2026\nReasoning Mode: {mode}\n\n"
    "## Custom Instructions\n\nYou are terse.\n\n<|im_end|>\n"
)
# With the system message, or without it where the format has none.
EXPECTED = {
    "chatml": CHATML,
    "llama-2": "<bos>[INST] <<SYS>>\nYou are terse.\n<</SYS>>\n\nHello [/INST]"
    " Hi & <b>there</b> <eos><bos>[INST] Größe \U0001f600? [/INST]",
    "llama-3": "<bos><|start_header_id|>system<|end_header_id|>\n\nYou are terse.<|eot_id|>"
    + LLAMA_3_TALK,
    "llama-3.2": "<bos><|start_header_id|>system<|end_header_id|>\n\n"
    "Cutting Knowledge Date: December 2023\nToday Date: 05 Mar 2026\n\nYou are terse.<|eot_id|>"
    + LLAMA_3_TALK,
    "mistral-v0.1": "<bos>[INST] Hello [/INST] Hi & <b>there</b> <eos>"
    "[INST] Größe \U0001f600? [/INST]",
    "mistral-v1": "<bos> [INST] You are terse.\n\nHello [/INST]  Hi & <b>there</b> <eos>"
    " [INST] Größe \U0001f600? [/INST]",
    "mistral-v3": "<bos>[INST] Hello[/INST] Hi & <b>there</b><eos>"
    "[INST] You are terse.\n\nGröße \U0001f600?[/INST]",
    "mistral-v3-tekken": "<bos>[INST]Hello[/INST] Hi & <b>there</b> <eos>"
    "[INST]You are terse.\n\nGröße \U0001f600?[/INST]",
    "qwen2": CHATML,
    "qwen2.5": CHATML,
    "qwen3": CHATML,
    "gemma": "<bos><start_of_turn>user\n" + GEMMA_TALK,
    "gemma-3": "<bos><start_of_turn>user\nYou are terse.\n\n" + GEMMA_TALK,
    "phi-3": "<bos><|user|>\nHello<|end|>\n<|assistant|>\n Hi & <b>there</b> <|end|>\n"
    "<|user|>\nGröße \U0001f600?<|end|>\n<|assistant|>\n",
    "phi-3.5": "<|system|>\nYou are terse.<|end|>\n<|user|>\nHello<|end|>\n"
    "<|assistant|>\n Hi & <b>there</b> <|end|>\n<|user|>\nGröße \U0001f600?<|end|>\n"
    "<|assistant|>\n",
    "phi-4": "<|im_start|>system<|im_sep|>You are terse.<|im_end|>"
    "<|im_start|>user<|im_sep|>Hello<|im_end|>"
    "<|im_start|>assistant<|im_sep|> Hi & <b>there</b> <|im_end|>"
    "<|im_start|>user<|im_sep|>Größe \U0001f600?<|im_end|><|im_start|>assistant<|im_sep|>",
    "starcoder2-instruct": "<bos>You are an exceptionally intelligent coding assistant that "
    "consistently delivers accurate and reliable responses to user instructions.\n\n"
    "### Instruction\nHello\n\n### Response\n Hi & <b>there</b> <eos>\n\n"
    "### Instruction\nGröße \U0001f600?\n\n### Response\n",
    "smollm2": CHATML,
    "smollm3": SMOLLM3_HEAD.format(mode="/think") + CHATML_TALK,
    "granite-3": "<|start_of_role|>system<|end_of_role|>You are terse.<|end_of_text|>\n"
    "<|start_of_role|>user<|end_of_role|>Hello<|end_of_text|>\n"
    "<|start_of_role|>assistant<|end_of_role|> Hi & <b>there</b> <|end_of_text|>\n"
    "<|start_of_role|>user<|end_of_role|>Größe \U0001f600?<|end_of_text|>\n"
    "<|start_of_role|>assistant<|end_of_role|>",
    "glm4": "[gMASK]<sop><|system|>\nYou are terse.<|user|>\nHello<|assistant|>\n"
    " Hi & <b>there</b> <|user|>\nGröße \U0001f600?<|assistant|>",
    "deepseek-v2": "<bos>You are terse.\n\nUser: Hello\n\nAssistant:  Hi & <b>there</b> <eos>"
    "User: Größe \U0001f600?\n\nAssistant:",
    "deepseek-v3": "<bos>You are terse.<|User|>Hello<|Assistant|> Hi & <b>there</b> "
    "<|end_of_sentence|><|User|>Größe \U0001f600?<|Assistant|>",
    "deepseek-v3.1": "<bos>You are terse.<|User|>Hello<|Assistant|></think> Hi & <b>there</b> "
    "<|end_of_sentence|><|User|>Größe \U0001f600?<|Assistant|></think>",
    "gpt-oss": "<|start|>system<|message|>You are ChatGPT, a large language model trained by "
    "OpenAI.\nKnowledge cutoff: 2024-06\nCurrent date: 2026-03-05\n\nReasoning: medium\n\n"
    "# Valid channels: analysis, commentary, final. Channel must be included for every message."
    "<|end|><|start|>developer<|message|># Instructions\n\nYou are terse.\n\n<|end|>"
    "<|start|>user<|message|>Hello<|end|>"
    "<|start|>assistant<|channel|>final<|message|> Hi & <b>there</b> <|end|>"
    "<|start|>user<|message|>Größe \U0001f600?<|end|><|start|>assistant",
    "lfm2": "<bos>" + CHATML,
    "zephyr": "<|system|>\nYou are terse.<eos>\n<|user|>\nHello<eos>\n"
    "<|assistant|>\n Hi & <b>there</b> <eos>\n<|user|>\nGröße \U0001f600?<eos>\n<|assistant|>\n",
}
DEEPSEEK_TOKENS = {
    "<|User|>": "<\uff5cUser\uff5c>",
    "<|Assistant|>": "<\uff5cAssistant\uff5c>",
    "<|end_of_sentence|>": "<\uff5cend\u2581of\u2581sentence\uff5c>",
}


class FifthOfMarch(datetime.datetime):
    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> FifthOfMarch:
        return cls(2026, 3, 5, 12, 0, 0, tzinfo=tz)


@pytest.fixture(autouse=True)
def fixed_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_process, "datetime", FifthOfMarch)
    monkeypatch.setattr(reference, "datetime", FifthOfMarch)


def render(name: str, messages: list[Message], thinking: bool | None = None) -> str:
    template = ChatTemplate(TEMPLATES[name], name=name)
    return template.render(messages, special_tokens=SPECIAL, thinking=thinking)


def conversation(name: str) -> list[Message]:
    return TALK if name in REFUSE_SYSTEM else [SYSTEM, *TALK]


def test_every_template_has_its_text() -> None:
    assert TEMPLATES.keys() == EXPECTED.keys()
    assert len(EXPECTED) >= 27


@pytest.mark.parametrize("name", EXPECTED)
def test_literal_text(name: str) -> None:
    expected = EXPECTED[name]
    for plain, published in DEEPSEEK_TOKENS.items() if name.startswith("deepseek") else ():
        expected = expected.replace(plain, published)
    assert render(name, conversation(name)) == expected


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("thinking", [None, True, False])
def test_same_as_transformers(name: str, thinking: bool | None) -> None:
    switches = {} if thinking is None else {"enable_thinking": thinking, "thinking": thinking}
    for messages in (conversation(name), TALK, TALK[:1]):
        [expected], _ = reference.render_jinja_template(
            [messages],
            chat_template=TEMPLATES[name],
            add_generation_prompt=True,
            **SPECIAL,
            **switches,
        )
        assert render(name, messages, thinking) == expected


@pytest.mark.parametrize("name", sorted(THINKING))
def test_thinking_makes_a_difference_where_it_exists(name: str) -> None:
    on, off = (render(name, [SYSTEM, *TALK], thinking) for thinking in (True, False))
    assert on != off
    assert render(name, [SYSTEM, *TALK]) in (on, off)


def test_thinking_off_closes_the_thoughts() -> None:
    talk = [SYSTEM, *TALK]
    assert render("qwen3", talk, False) == render("qwen3", talk) + "<think>\n\n</think>\n\n"
    assert render("smollm3", talk, False).startswith(SMOLLM3_HEAD.format(mode="/no_think"))
    assert render("smollm3", talk, False).endswith("assistant\n<think>\n\n</think>\n")
    assert render("deepseek-v3.1", talk, True).endswith("<think>")


def test_earlier_thoughts_are_left_out() -> None:
    thought: list[Message] = [
        TALK[0],
        {"role": "assistant", "content": "<think>\nA greeting.\n</think>\n\nHi"},
        TALK[2],
    ]
    assert "A greeting" not in render("qwen3", thought)
    assert "<|im_start|>assistant\nHi<|im_end|>" in render("qwen3", thought)


@pytest.mark.parametrize("name", sorted(REFUSE_SYSTEM))
def test_a_format_without_system_messages_says_so(name: str) -> None:
    with pytest.raises(UsageError, match="refuses this conversation"):
        render(name, [SYSTEM, *TALK])


def test_roles_must_alternate() -> None:
    with pytest.raises(UsageError, match="roles must alternate"):
        render("mistral-v3", [TALK[0], TALK[0]])
