"""Images in prompts: where they belong, what stands for them, and what stays text."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import transformers
from PIL import Image
from test_published_templates import TEMPLATES
from text_checkpoints import TextCheckpoint
from text_samples import published_pre_tokenizers, train_byte_level
from tokenizers import AddedToken
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.idefics2.image_processing_pil_idefics2 import Idefics2ImageProcessorPil
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.mllama.image_processing_pil_mllama import MllamaImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from mrs.errors import Unsupported, UsageError
from mrs.request import IMAGE_MARK, Message
from mrs.text.text_processor import TextProcessor, read_text_processor

# What published templates do, each in its own way; the words around the contents are shorter.
#: Parts alone; images before the text of a message.
PARTS_ONLY = """
{%- for message in messages %}{{ message['role'].upper() + ': ' }}
{%- for part in message['content'] | selectattr('type', 'equalto', 'image') %}{{ '<image>\n' }}
{%- endfor %}
{%- for part in message['content'] | selectattr('type', 'equalto', 'text')
%}{{ part['text'] + ' ' }}
{%- endfor %}
{%- endfor %}{% if add_generation_prompt %}ASSISTANT:{% endif %}"""
#: Parts alone, looked into without asking.
FIRST_PART = """<|im_start|>
{%- for message in messages %}{{ message['role'] | capitalize }}
{%- if message['content'][0]['type'] == 'image' %}:{% else %}{{ ': ' }}{% endif %}
{%- for line in message['content'] %}
{%- if line['type'] == 'text' %}{{ line['text'] }}
{%- elif line['type'] == 'image' %}<image>{% endif %}
{%- endfor %}{{ '<|im_end|>\n' }}
{%- endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"""
#: A text or parts, for every role but the system's, which writes a text.
EITHER = """
{%- for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}
{%- if message['content'] is string or message['role'] == 'system' %}{{ message['content'] }}
{%- else %}
{%- for part in message['content'] %}
{%- if part['type'] == 'image' or 'image' in part %}IMAGE{% elif 'text' in part %}{{ part['text'] }}
{%- endif %}
{%- endfor %}
{%- endif %}{{ '<|im_end|>\n' }}
{%- endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""
#: Texts alone.
TEXTS_ONLY = """
{%- for message in messages
%}{{ '<|' + message['role'] + '|>\n' + message['content'] + '<|end|>\n' }}
{%- endfor %}{{ '<|assistant|>\n' }}"""
#: Texts alone, and whatever else it is given as Python spells it.
SPELLS_OUT = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"

BASE = train_byte_level(published_pre_tokenizers()["qwen2"])
TURNS: list[Message] = [
    {"role": "user", "content": f"{IMAGE_MARK}What is it?", "images": ["a"]},
    {"role": "assistant", "content": "A quick brown fox."},
    {"role": "user", "content": f"And {IMAGE_MARK} or\n{IMAGE_MARK}?", "images": ["b", "c"]},
]
EDGE = "<fake_token_around_image>"
SIZES = ((40, 30), (30, 61), (97, 20))


@dataclass(frozen=True)
class Case:
    """One family's processor, with a template and the tokens that stand for images."""

    name: str
    template: str
    placeholder: str
    controls: tuple[str, ...]
    processor: Callable[[Any], Any]
    edge: str | None = None


def _clip() -> CLIPImageProcessorPil:
    return CLIPImageProcessorPil(size={"shortest_edge": 24}, crop_size={"height": 24, "width": 24})


class QwenProcessor(transformers.Qwen2VLProcessor):
    """Without its part for videos, which needs torchvision."""

    def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> None:
        """The missing part is of no class."""


class PixtralStandIn:
    """What transformers' PixtralProcessor does to texts; that one needs torchvision."""

    chat_template = ""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def apply_chat_template(self, messages: Any, **options: Any) -> Any:
        return self.tokenizer.apply_chat_template(
            messages, chat_template=self.chat_template, tokenize=False, **options
        )

    def __call__(self, text: list[str], images: list[list[Image.Image]], **options: Any) -> Any:
        before, *after = text[0].split("[IMG]")
        for image, rest in zip(images[0], after, strict=True):
            rows = ["[IMG]" * (image.width // 10)] * (image.height // 10)
            before += "[IMG_BREAK]".join(rows) + "[IMG_END]" + rest
        return self.tokenizer([before], **options)


CASES = [
    Case(
        "llava",
        PARTS_ONLY,
        "<image>",
        ("<image>",),
        lambda tokenizer: transformers.LlavaProcessor(
            _clip(),
            tokenizer,
            patch_size=6,
            vision_feature_select_strategy="default",
            num_additional_image_tokens=1,
        ),
    ),
    Case(
        "qwen2-vl",
        EITHER.replace("IMAGE", "<|vision_start|><|image_pad|><|vision_end|>"),
        "<|image_pad|>",
        ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"),
        lambda tokenizer: QwenProcessor(
            Qwen2VLImageProcessorPil(patch_size=4, min_pixels=64, max_pixels=4096), tokenizer
        ),
    ),
    Case(
        "gemma3",
        TEMPLATES["gemma-3"],
        "<start_of_image>",
        (
            *("<start_of_turn>", "<end_of_turn>", "<start_of_image>", "<end_of_image>"),
            "<image_soft_token>",
        ),
        lambda tokenizer: transformers.Gemma3Processor(
            Gemma3ImageProcessorPil(), tokenizer, image_seq_length=4
        ),
    ),
    Case(
        "idefics2",
        FIRST_PART,
        "<image>",
        ("<image>", EDGE, "<end_of_utterance>"),
        lambda tokenizer: transformers.Idefics2Processor(
            Idefics2ImageProcessorPil(), tokenizer, image_seq_len=4
        ),
        EDGE,
    ),
    Case(
        "idefics3",
        FIRST_PART,
        "<image>",
        ("<image>", "<fake_token_around_image>", "<global-img>", "<row_1_col_1>", "<row_1_col_2>"),
        lambda tokenizer: transformers.Idefics3Processor(
            Idefics3ImageProcessorPil(
                size={"longest_edge": 64}, max_image_size={"longest_edge": 32}
            ),
            tokenizer,
            image_seq_len=4,
        ),
    ),
    Case(
        "mllama",
        "{{ bos_token }}" + EITHER.replace("IMAGE", "<|image|>"),
        "<|image|>",
        ("<|image|>",),
        lambda tokenizer: transformers.MllamaProcessor(
            MllamaImageProcessorPil(size={"height": 16, "width": 16}), tokenizer
        ),
    ),
    Case(
        "pixtral",
        EITHER.replace("IMAGE", "[IMG]"),
        "[IMG]",
        ("[IMG]", "[IMG_BREAK]", "[IMG_END]"),
        PixtralStandIn,
    ),
]


def text_processor_of(
    template: str | None,
    placeholder: str | None,
    controls: Sequence[str] = (),
    added: Sequence[str] = (),
    edge: str | None = None,
) -> TextProcessor:
    """A text processor whose tokenizer has more control tokens and other added tokens."""
    backend = type(BASE).from_str(BASE.to_str())
    backend.add_special_tokens([AddedToken(text, normalized=False) for text in controls])
    backend.add_tokens([AddedToken(text, normalized=False) for text in added])
    settings = {"bos_token": "<s>", "eos_token": "<|im_end|>", "chat_template": template}
    files = {"tokenizer.json": backend.to_str(), "tokenizer_config.json": json.dumps(settings)}
    checkpoint = TextCheckpoint(files=files)
    return read_text_processor(checkpoint, placeholder=placeholder, image_edge=edge)


def spelled(
    processor: TextProcessor, messages: Sequence[Message], image_texts: Sequence[str] = ()
) -> str:
    """The prompt, with control tokens in brackets that no text has."""
    backend = processor.tokenizer.backend
    ids = processor.prompt_ids(messages, image_texts=image_texts)
    controls = {i: text for text, i in processor.tokenizer.added_ids.items()}
    return "".join(f"⟦{controls[i]}⟧" if i in controls else backend.decode([i]) for i in ids)


def as_parts(message: Message) -> dict[str, Any]:
    """The message as transformers takes it."""
    first, *rest = message["content"].split(IMAGE_MARK)
    parts = [{"type": "text", "text": first}] if first else []
    for text in rest:
        parts += [{"type": "image"}, {"type": "text", "text": text}]
    return {"role": message["role"], "content": parts}


def image(width: int, height: int) -> Image.Image:
    values = np.random.default_rng(width).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(values)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_prompts_are_those_of_the_processor(case: Case) -> None:
    ours = text_processor_of(case.template, case.placeholder, case.controls, edge=case.edge)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=ours.tokenizer.backend,
        bos_token="<s>",
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        extra_special_tokens={
            "boi_token": "<start_of_image>",
            "eoi_token": "<end_of_image>",
            "image_token": "<image_soft_token>",
        }
        if case.name == "gemma3"
        else {},
    )
    processor = case.processor(tokenizer)
    processor.chat_template = case.template
    images = [image(*size) for size in SIZES]

    def expanded(text: str, shown: list[Image.Image]) -> list[int]:
        found = processor(text=[text], images=[shown], add_special_tokens=False)
        ids: list[int] = np.asarray(found["input_ids"]).reshape(-1).tolist()
        return ids

    texts = [tokenizer.decode(expanded(f"<s>{case.placeholder}", [image])[1:]) for image in images]
    rendered = processor.apply_chat_template(
        [as_parts(message) for message in TURNS], add_generation_prompt=True
    )
    assert ours.prompt_ids(TURNS, image_texts=texts) == expanded(rendered, images)


PROCESSORS = {
    case.name: text_processor_of(case.template, case.placeholder, case.controls) for case in CASES
}
PROCESSORS["idefics2"] = text_processor_of(FIRST_PART, "<image>", ("<image>", EDGE), edge=EDGE)
PROCESSORS["phi3_v"] = text_processor_of(TEXTS_ONLY, "<|image_{n}|>", ["<|end|>", "<|image|>"])
PROCESSORS["none"] = text_processor_of(None, "<image>", ["<image>"])
PLACEHOLDERS = {case.name: case.placeholder for case in CASES} | {
    "phi3_v": "<|image_1|>",
    "none": "<image>",
}


def test_a_template_that_takes_texts_gets_numbered_placeholders() -> None:
    assert spelled(
        PROCESSORS["phi3_v"], TURNS, ["<|image|>" * 2, "<|image|>", "<|image|>" * 3]
    ) == (
        "<|user|>\n⟦<|image|>⟧⟦<|image|>⟧What is it?⟦<|end|>⟧\n"
        "<|assistant|>\nA quick brown fox.⟦<|end|>⟧\n"
        "<|user|>\nAnd ⟦<|image|>⟧ or\n⟦<|image|>⟧⟦<|image|>⟧⟦<|image|>⟧?⟦<|end|>⟧\n"
        "<|assistant|>\n"
    )


def test_images_without_text_between_them_share_a_token() -> None:
    shown = "⟦<image>⟧⟦<image>⟧"
    content = f"{IMAGE_MARK * 2} {IMAGE_MARK}What? {EDGE}b"
    asked: list[Message] = [{"role": "user", "content": content, "images": ["a", "b", "c"]}]
    said = spelled(PROCESSORS["idefics2"], asked, [f"{EDGE}<image><image>{EDGE}"] * 3)
    edge = f"⟦{EDGE}⟧"
    pair = f"{edge}{shown}{edge}{shown}{edge}"
    one = f"{edge}{shown}{edge}"
    assert said.startswith(f"⟦<|im_start|>⟧User:{pair} {one} What? {EDGE}b⟦")


@pytest.mark.parametrize("name", ["llava", "none"])
def test_images_are_numbered(name: str) -> None:
    """As those of MiniCPM-V, from 0."""
    said = spelled(PROCESSORS[name], TURNS, ["(image {n})<image>"] * 3)
    assert [said.count(f"(image {number})⟦<image>⟧") for number in range(4)] == [1, 1, 1, 0]


def test_a_model_that_sees_talks_without_its_eyes() -> None:
    processor = text_processor_of(PARTS_ONLY, None)
    asked: list[Message] = [{"role": "user", "content": "Who?"}]
    assert spelled(processor, asked) == "USER: Who? ASSISTANT:"


def test_a_list_that_is_spelled_out_is_no_rendering() -> None:
    processor = text_processor_of(SPELLS_OUT, "<image>", ["<image>"])
    assert spelled(processor, TURNS[:1], ["<image>"]) == "⟦<image>⟧What is it?\n"


def test_without_a_template_images_stand_in_the_text() -> None:
    assert spelled(PROCESSORS["none"], TURNS, ["<image>", "<image>" * 2, "<image>"]) == (
        "⟦<image>⟧What is it?\nA quick brown fox.\nAnd ⟦<image>⟧⟦<image>⟧ or\n⟦<image>⟧?"
    )


@pytest.mark.parametrize("name", sorted(PROCESSORS.keys() - {"none"}))
def test_texts_alone_go_through_every_template(name: str) -> None:
    messages: list[Message] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Who?"},
        {"role": "assistant", "content": "A fox."},
        {"role": "user", "content": ""},
    ]
    said = spelled(PROCESSORS[name], messages)
    places = [said.index(text) for text in ("Be brief.", "Who?", "A fox.")]
    assert places == sorted(places)
    assert "'" not in said


@pytest.mark.parametrize("name", PROCESSORS.keys())
def test_a_typed_placeholder_stays_text(name: str) -> None:
    processor, placeholder = PROCESSORS[name], PLACEHOLDERS[name]
    image = "⟦<|image|>⟧" if name == "phi3_v" else f"⟦{placeholder}⟧"
    messages: list[Message] = [
        {"role": "user", "content": f"Say {placeholder}{IMAGE_MARK}{placeholder}", "images": ["a"]},
    ]
    if name == "none":
        with pytest.raises(UsageError, match="contains <image>, which stands for an image"):
            processor.prompt_ids(messages, image_texts=[placeholder])
        return
    said = spelled(processor, messages, ["<|image|>" if name == "phi3_v" else placeholder])
    assert said.count(image) == 1
    assert said.replace(image, "").count(placeholder) == 2
    assert image not in spelled(processor, [{"role": "user", "content": placeholder * 2}])


def test_an_added_token_that_is_no_control_token_cannot_be_typed_either() -> None:
    processor = text_processor_of(PARTS_ONLY, "<image>", added=["<image>"])
    messages: list[Message] = [
        {"role": "user", "content": f"{IMAGE_MARK}Say <image>", "images": ["a"]}
    ]
    assert spelled(processor, messages, ["<image>" * 2]) == (
        "USER: ⟦<image>⟧⟦<image>⟧\nSay <image> ASSISTANT:"
    )


def test_image_tokens_beside_the_placeholder_cannot_be_typed() -> None:
    backend = type(BASE).from_str(BASE.to_str())
    backend.add_tokens([AddedToken("<patch>", normalized=False)])
    settings = {"chat_template": PARTS_ONLY}
    files = {"tokenizer.json": backend.to_str(), "tokenizer_config.json": json.dumps(settings)}
    token_id = backend.token_to_id("<patch>")
    processor = read_text_processor(
        TextCheckpoint(files=files), placeholder="<image>", image_token_id=token_id
    )
    said = spelled(
        processor,
        [{"role": "user", "content": f"{IMAGE_MARK}<patch>", "images": ["a"]}],
        ["<patch>"],
    )
    assert said == "USER: ⟦<patch>⟧\n<patch> ASSISTANT:"


def test_marks_in_a_message_without_images_are_text() -> None:
    processor = PROCESSORS["llava"]
    ids = processor.prompt_ids([{"role": "user", "content": f"a{IMAGE_MARK}b"}])
    assert processor.tokenizer.decode(ids) == f"USER: a{IMAGE_MARK}b ASSISTANT:"


def test_what_does_not_belong_together_is_refused() -> None:
    llava = PROCESSORS["llava"]
    with pytest.raises(UsageError, match="a message has 2 images but 1 image marks"):
        llava.prompt_ids([{"role": "user", "content": IMAGE_MARK, "images": ["a", "b"]}])
    with pytest.raises(UsageError, match="1 images for 3 image marks"):
        llava.prompt_ids(TURNS, image_texts=["<image>"])
    with pytest.raises(Unsupported, match="the model has no vision support"):
        text_processor_of(PARTS_ONLY, None).prompt_ids(TURNS[:1], image_texts=["<image>"])
    forgetful = text_processor_of("{{ messages[-1]['content'] }}", "<image>", ["<image>"])
    with pytest.raises(UsageError, match=r"renders 2 of 3 images \(tokenizer_config\.json\)"):
        forgetful.prompt_ids(TURNS, image_texts=["<image>"] * 3)
    with pytest.raises(UsageError, match="renders 1 of 0 images"):
        text_processor_of("<image>{{ messages[0]['content'] }}", "<image>", ["<image>"]).prompt_ids(
            [{"role": "user", "content": "x"}]
        )
