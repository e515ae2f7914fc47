"""Formats of thoughts: a template of each, as its family publishes the part for thoughts."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from text_checkpoints import BACKEND, TextCheckpoint

from mrs.text.text_processor import TextProcessor, read_text_processor

_HEAD = (
    "{% for m in messages %}{% if m.role == 'user' %}<|im_start|>user\n{{ m.content }}<|im_end|>"
)
_FOOT = "{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"


def template(thought: str, foot: str = "") -> str:
    """A template that writes a reply as `thought` and the answer; `foot` begins a reply."""
    reply = "{% else %}<|im_start|>assistant\n" + thought + "{{ m.content }}<|im_end|>"
    return f"{_HEAD}{reply}{_FOOT}{foot}{{% endif %}}"


def field_of(name: str, open: str, close: str) -> str:
    return f"{{% if m.{name} %}}{open}{{{{ m.{name} }}}}{close}{{% endif %}}"


@dataclass(frozen=True)
class Style:
    """A template, and what a model writes around a thought and as its answer without a thought."""

    template: str
    open: str
    close: str
    control: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    is_open: bool = False
    plain: str = ""
    after: str = ""
    is_harmony: bool = field(default=False)

    @property
    def text(self) -> TextProcessor:
        settings = json.loads(BACKEND.to_str())
        known = {token["content"] for token in settings["added_tokens"]}
        first = max(token["id"] for token in settings["added_tokens"]) + 1
        model = settings["added_tokens"][0]
        added = [each for each in (*self.control, *self.added) if each not in known]
        for index, name in enumerate(added):
            token = {**model, "id": first + index, "content": name}
            settings["added_tokens"].append({**token, "special": name in self.control})
        files = {
            "tokenizer.json": json.dumps(settings),
            "tokenizer_config.json": json.dumps({"bos_token": "<s>", "eos_token": "<|im_end|>"}),
            "chat_template.jinja": self.template,
        }
        return read_text_processor(TextCheckpoint(files=files))


_MAGISTRAL = (
    "{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}"
    "{% if part.type == 'thinking' %}[THINK]{{ part.thinking }}[/THINK]"
    "{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}"
)
_HARMONY = ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|return|>", "<|call|>")
_MUSE_FOOT = _FOOT.replace("<|im_start|>assistant\n", "<|start|>assistant")
STYLES = {
    "qwen": Style(
        template(field_of("reasoning_content", "<think>\n", "\n</think>\n\n")),
        "<think>",
        "\n</think>",
        added=("<think>", "</think>"),
    ),
    "letters": Style(
        template(field_of("reasoning_content", "<pondering>\n", "\n</pondering>\n\n")),
        "<pondering>",
        "\n</pondering>",
    ),
    "r1, opened": Style(
        template("", "<think>\n").replace(
            "m.content }}<|im_end|>{% endif", "m.content.split('</think>')[-1] }}<|im_end|>{% endif"
        ),
        "<think>",
        "\n</think>",
        control=("<think>", "</think>"),
        is_open=True,
    ),
    "seed": Style(
        template(field_of("reasoning_content", "<seed:think>", "</seed:think>")),
        "<seed:think>",
        "</seed:think>",
        control=("<seed:think>", "</seed:think>"),
    ),
    "magistral": Style(
        f"{_HEAD}{{% else %}}{_MAGISTRAL}<|im_end|>{_FOOT}{{% endif %}}",
        "[THINK]",
        "[/THINK]",
        control=("[THINK]", "[/THINK]"),
    ),
    "gemma 4": Style(
        template(field_of("reasoning", "<|channel>thought\n", "\n<channel|>")),
        "<|channel>thought",
        "\n<channel|>",
        control=("<|channel>", "<channel|>"),
    ),
    "command": Style(
        template(
            field_of("thinking", "<|START_THINKING|>", "<|END_THINKING|>") + "<|START_RESPONSE|>"
        ),
        "<|START_THINKING|>",
        "<|END_THINKING|>",
        control=("<|START_THINKING|>", "<|END_THINKING|>", "<|START_RESPONSE|>"),
        plain="<|START_RESPONSE|>",
        after="<|START_RESPONSE|>",
    ),
    "muse": Style(
        f"{_HEAD}{{% else %}}"
        + field_of("reasoning_content", "<|start|>assistant to=self<|message|>", "<|eom|>")
        + "<|start|>assistant to=user<|message|>{{ m.content }}<|im_end|>"
        + _MUSE_FOOT
        + "{% endif %}",
        " to=self<|message|>",
        "<|eom|>",
        after="<|start|>assistant to=user<|message|>",
        control=("<|start|>", "<|message|>", "<|eom|>"),
        plain=" to=user<|message|>",
    ),
    "harmony": Style(
        template(""),
        "<|channel|>analysis<|message|>",
        "<|end|>",
        after="<|start|>assistant<|channel|>final<|message|>",
        control=_HARMONY,
        plain="<|channel|>final<|message|>",
        is_harmony=True,
    ),
}
