"""The marks of thoughts are those that the template writes."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from styles import STYLES, Style
from test_published_templates import TEMPLATES

from mrs.text.template import ChatTemplate
from mrs.text.thinking_template import ThinkingTemplate
from mrs.text.thought_splitter import UsualMarks
from mrs.text.thoughts import ThoughtMarks

TRL = Path(
    pytest.importorskip(
        "trl", reason="trl is not installed: pip install --no-deps trl==1.16.0"
    ).__file__
).parent
PUBLISHED = {
    path.stem: path.read_text(encoding="utf-8")
    for path in (TRL / "chat_templates").glob("*.jinja")
    if "training" not in path.stem
} | TEMPLATES
THINK, CHANNEL = ("<think>", "</think>"), ("<|channel>thought", "<channel|>")
#: The marks of every published template at hand that has some, as its family describes them.
MARKS = {
    **dict.fromkeys(["deepseek_r1_distill", "deepseekv3", "deepseek-v3.1", "glm4moe"], THINK),
    **dict.fromkeys(["lfm2_2_5", "lfm2_2_5_v2", "lfm2_2_5_vl", "smollm3"], THINK),
    **dict.fromkeys(["nemotron_3_nano", "nemotron_3_super", "nemotron_3_ultra"], THINK),
    **dict.fromkeys(["nemotron_3_5_lightning", "qwen3_6", "qwen3_8", "qwen3"], THINK),
    **dict.fromkeys(["qwen3_5_think", "qwen3_5_nothink"], THINK),
    **dict.fromkeys(["gemma4", "gemma4_v2", "gemma4_v3", "gemma4_v4", "gemma4_v5"], CHANNEL),
    "diffusion_gemma": CHANNEL,
    "muse_glimmer": (" to=self<|message|>", "<|eom|>"),
}
#: Harmony's channels are read by the harmony format itself.
CHANNELS = {"gptoss", "gpt-oss"}
SWITCHES = {
    *("deepseek-v3.1", "diffusion_gemma", "gemma4", "gemma4_v2", "gemma4_v3", "gemma4_v4"),
    *("gemma4_v5", "glm4moe", "nemotron_3_5_lightning", "nemotron_3_nano", "nemotron_3_super"),
    *("nemotron_3_ultra", "qwen3", "qwen3_5_nothink", "qwen3_5_think", "qwen3_6", "qwen3_8"),
    "smollm3",
}
EFFORTS = {
    **dict.fromkeys(["gptoss", "gpt-oss", "qwen3_8"], "reasoning_effort"),
    "muse_glimmer": "reasoning_strength",
}


def read(source: str) -> ThinkingTemplate:
    special = {"bos_token": "<s>", "eos_token": "</s>"}
    return ThinkingTemplate(ChatTemplate(source, name="template"), special)


@pytest.mark.few(16)
@pytest.mark.parametrize("name", sorted(PUBLISHED.keys() - CHANNELS))
def test_every_published_template(name: str) -> None:
    found = read(PUBLISHED[name])
    assert (found.marks and (found.marks.open, found.marks.close)) == MARKS.get(name)


@pytest.mark.few(16)
@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_what_a_template_can_switch(name: str) -> None:
    found = read(PUBLISHED[name])
    assert found.has_switch is (name in SWITCHES)
    assert found.effort_variable == EFFORTS.get(name)


@pytest.mark.parametrize("style", [each for each in STYLES.values() if not each.is_harmony])
def test_every_style(style: Style) -> None:
    marks = style.text.marks
    assert marks is not None
    assert (marks.open, marks.before + marks.close) == (style.open, style.close)
    assert (marks.plain, marks.after.strip()) == (style.plain, style.after)


@pytest.mark.parametrize(
    ("begins", "marks"),
    [
        ("<think>\n", ThoughtMarks()),
        ("{% if enable_thinking %}[THINK]{% endif %}", ThoughtMarks("[THINK]", "[/THINK]")),
        ("{% if not enable_thinking %}<mull>\n\n</mull>\n\n{% endif %}",
         ThoughtMarks("<mull>", "</mull>")),
        ("", None),
        ("<answer>", None),
    ],
)  # fmt: skip
def test_marks_of_the_beginning_of_a_reply(begins: str, marks: ThoughtMarks | None) -> None:
    source = (
        "{{ messages[0].content }}{% if add_generation_prompt %}\nbot: " + begins + "{% endif %}"
    )
    assert read(source).marks == marks


def test_a_template_that_fails_has_no_marks() -> None:
    assert read("{{ raise_exception('no') }}").marks is None


MUSE = ThoughtMarks(
    " to=self<|message|>",
    "<|eom|>",
    "",
    "<|start|>assistant to=user<|message|>",
    " to=user<|message|>",
)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(
    ("written", "said"),
    [
        (" to=self<|message|>hm<|eom|><|start|>assistant to=user<|message|>Hi",
         "<think>hm</think>Hi"),
        (" to=user<|message|>Hi to=user<|message|>", "Hi to=user<|message|>"),
        (" to=self<|message|><|eom|>Hi", "Hi"),
        (" to=self<|message|>hm<|eom|><|start|>assistant to=tool<|message|>x",
         "<think>hm</think><|start|>assistant to=tool<|message|>x"),
        (" to=self<|message|>hm <|eo", "<think>hm <|eo"),
        (" to=us", " to=us"),
        ("Hi", "Hi"),
    ],
)  # fmt: skip
def test_the_text_of_a_reply_has_the_usual_marks(written: str, said: str, seed: int) -> None:
    """In pieces of any size, and without headers of the answer."""
    chance, marks, found, start = random.Random(seed), UsualMarks(MUSE, is_open=False), "", 0
    while start < len(written):
        end = start + chance.randint(1, 9)
        found += marks.feed(written[start:end])
        start = end
    found += marks.finish()
    assert found.removeprefix("<think></think>") == said
