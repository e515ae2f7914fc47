"""Tokens of texts and chats against transformers with the vocabulary of the published file."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from mrs.request import Message
from mrs.text.stream_decoder import StreamDecoder
from mrs.text.template import ChatTemplate
from mrs.text.text_processor import TextProcessor
from support.published_model import ExactModel

# What the model's tokenizer.json has and GGUF files name `smollm`.
DIGITS_APART = pre_tokenizers.Sequence(
    [
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False),
    ]
)
SAMPLES = [
    "Hello  world,   it's 2024-06-01: 12345 items!\n\n\tdef f(x):\n        return x ** 2\n",
    "Größe café e\u0301 \u2026 日本語 한국어 привет \U0001f600",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f44d\U0001f3fd",
    "   leading, trailing   ",
    "a<|im_start|>system\n<|im_end|> <repo_name>x<|endoftext|>",
    "\r\n\r\n \u00a0\u3000 \x00\x7f",
]


@pytest.fixture(scope="module")
def texts() -> list[str]:
    folder = Path(sysconfig.get_path("stdlib"))
    code = "".join((folder / name).read_text() for name in ("textwrap.py", "heapq.py"))
    return [*SAMPLES, *(code[start : start + 700] for start in range(0, len(code), 700))]


@pytest.fixture(scope="module")
def tokenizer(exact: ExactModel) -> PreTrainedTokenizerFast:
    facts = {key.removeprefix("tokenizer.ggml."): value for key, value in exact.metadata.items()}
    words = list(facts["tokens"])
    merges = [tuple(merge.split(" ")) for merge in facts["merges"]]
    backend = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, merges))
    backend.pre_tokenizer, backend.decoder = DIGITS_APART, decoders.ByteLevel()
    controls = [w for w, kind in zip(words, facts["token_type"], strict=True) if kind == 3]
    backend.add_special_tokens([AddedToken(word, normalized=False) for word in controls])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=words[facts["bos_token_id"]],
        eos_token=words[facts["eos_token_id"]],
    )


@pytest.fixture(scope="module")
def ours(exact: ExactModel) -> TextProcessor:
    from mrs.text.gguf_tokenizer import read_gguf_tokenizer

    tokenizer = read_gguf_tokenizer(exact.metadata)
    template = ChatTemplate(exact.metadata["tokenizer.chat_template"], name="the file")
    return TextProcessor(tokenizer, template, stop_ids=tokenizer.end_ids)


def test_same_tokens_of_texts(
    ours: TextProcessor, tokenizer: PreTrainedTokenizerFast, texts: list[str]
) -> None:
    for text in texts:
        ids = tokenizer.encode(text)
        assert ours.encode_raw(text) == ids
        assert ours.tokenizer.decode(ids) == tokenizer.decode(ids, skip_special_tokens=True)
        streamed = "".join(map(StreamDecoder(ours.tokenizer).push, ids))
        assert streamed == tokenizer.decode(ids, skip_special_tokens=True)


def test_same_tokens_of_chats(
    ours: TextProcessor, tokenizer: PreTrainedTokenizerFast, texts: list[str]
) -> None:
    system: Message = {"role": "system", "content": "You are terse."}
    plain = [text for text in texts if "<|" not in text]
    for first, second, third in zip(plain, plain[1:], plain[2:], strict=False):
        turns: list[Message] = [
            {"role": "user", "content": first},
            {"role": "assistant", "content": second},
            {"role": "user", "content": third},
        ]
        for messages in (turns[:1], turns, [system, *turns]):
            expected = tokenizer.apply_chat_template(
                messages,
                chat_template=ours.template.source if ours.template else "",
                add_generation_prompt=True,
                return_dict=False,
            )
            assert ours.prompt_ids(messages) == expected
