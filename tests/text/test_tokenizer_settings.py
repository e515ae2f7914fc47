"""Tokens that only settings files name, and rules they change, as transformers reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from text_samples import published_pre_tokenizers, texts, train_byte_level
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from mrs.errors import NotReadable
from mrs.text.hf_tokenizer import read_hf_tokenizer
from mrs.text.template import ChatTemplate
from mrs.text.text_processor import TextProcessor
from mrs.text.tokenizer import Tokenizer

BACKEND = json.loads(train_byte_level(published_pre_tokenizers()["qwen2"]).to_str())
SIZE = len(BACKEND["model"]["vocab"]) + len(BACKEND["added_tokens"])
BOS_EOS = {"bos_token": "<s>", "eos_token": "<|im_end|>"}
NEW = ["<|new|>", "<image>", "<|eot|>", "[A]", "<boi>"]


def write(folder: Path, **files: Any) -> Path:
    """A folder with tokenizer.json and other JSON files."""
    for name, content in {"tokenizer": BACKEND, **files}.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def read(folder: Path) -> Tokenizer:
    def read_text(name: str) -> str | None:
        path = folder / name
        return path.read_text(encoding="utf-8") if path.exists() else None

    return read_hf_tokenizer(read_text)


def token(content: str, **flags: bool) -> dict[str, Any]:
    plain = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False}
    return {"content": content, **plain, "special": True, **flags}


SETTINGS: dict[str, dict[str, Any]] = {
    "additional": {"tokenizer_config": {**BOS_EOS, "additional_special_tokens": NEW}},
    "extra list": {"tokenizer_config": {**BOS_EOS, "extra_special_tokens": NEW}},
    "extra names": {
        "tokenizer_config": {
            **BOS_EOS,
            "extra_special_tokens": {"image_token": "<image>", "boi_token": "<boi>"},
        }
    },
    "roles of its own": {
        "tokenizer_config": {**BOS_EOS, "image_token": "<image>", "eot_token": "<|eot|>"}
    },
    "both lists": {
        "tokenizer_config": {
            **BOS_EOS,
            "extra_special_tokens": ["[A]"],
            "additional_special_tokens": ["<|new|>"],
        }
    },
    "added tokens": {
        "tokenizer_config": {**BOS_EOS, "extra_special_tokens": ["<|new|>"]},
        "added_tokens": {"<|new|>": SIZE, "[A]": SIZE + 1},
    },
    "map": {
        "tokenizer_config": {"eos_token": "</s>"},
        "special_tokens_map": {
            "eos_token": {**token("<|im_end|>"), "normalized": True},
            "bos_token": "<s>",
            "image_token": "<image>",
            "additional_special_tokens": ["<boi>"],
        },
    },
    "map beside a decoder": {
        "tokenizer_config": {
            **BOS_EOS,
            "added_tokens_decoder": {str(SIZE): token("<|new|>", rstrip=True)},
            "additional_special_tokens": ["<|new|>"],
        },
        "special_tokens_map": {"eos_token": "</s>", "additional_special_tokens": ["[A]"]},
        "added_tokens": {"<boi>": SIZE + 1},
    },
    "special by its role": {
        "tokenizer_config": {
            **BOS_EOS,
            "eos_token": "<|new|>",
            "added_tokens_decoder": {str(SIZE): token("<|new|>", special=False)},
        }
    },
    "mask": {"tokenizer_config": {**BOS_EOS, "mask_token": "[A]", "sep_token": "</s>"}},
    "flags that are no tokens": {
        "tokenizer_config": {**BOS_EOS, "add_bos_token": False, "use_x_token": None}
    },
}
TEXT = "x <|new|>\n <image>y<boi><|eot|>[A] </s> z<|im_end|>"


@pytest.mark.parametrize("name", sorted(SETTINGS))
def test_tokens_and_template_variables_as_in_transformers(tmp_path: Path, name: str) -> None:
    folder = write(tmp_path, **SETTINGS[name])
    ours, reference = read(folder), PreTrainedTokenizerFast.from_pretrained(folder)
    for text in (TEXT, *texts(40)):
        ids = reference.encode(text, add_special_tokens=False)
        assert ours.encode(text, allow_special=True) == ids
        assert ours.decode(ids) == reference.decode(ids, skip_special_tokens=True)
    assert dict(ours.special_tokens) == reference.special_tokens_map
    assert ours.eos_id == reference.eos_token_id
    special = set(reference.all_special_ids)
    assert special <= {*ours.control_ids.values()}
    source = (
        "{% for n in names %}[{{ n }}]{% endfor %}{{ image_token }}{{ boi_token }}{{ bos_token }}"
    )
    expected = reference.apply_chat_template(
        [{"role": "user", "content": "x"}], chat_template=source, names=[], return_dict=False
    )
    processor = TextProcessor(ours, ChatTemplate(source, name=name), stop_ids=frozenset())
    found = processor.prompt_ids([{"role": "user", "content": "x"}], variables={"names": []})
    assert found == expected


def test_control_tokens_in_variables_of_a_template_stay_text(tmp_path: Path) -> None:
    ours = read(write(tmp_path, **SETTINGS["additional"]))
    template = ChatTemplate("<s>{{ today }}{{ more[0].x }}{{ messages[0].content }}", name="t")
    processor = TextProcessor(ours, template, stop_ids=frozenset())
    given = {"today": "a</s>", "more": [{"x": "b</s>"}]}
    ids = processor.prompt_ids([{"role": "user", "content": "c</s>"}], variables=given)
    assert [each for each in ids if each in ours.control_ids.values()] == [ours.control_ids["<s>"]]
    assert ours.decode(ids) == "a</s>b</s>c</s>"


@pytest.mark.parametrize("name", ["additional", "extra names", "map", "added tokens"])
def test_a_user_cannot_write_tokens_that_settings_name(tmp_path: Path, name: str) -> None:
    ours = read(write(tmp_path, **SETTINGS[name]))
    known = [text for text in NEW if text in ours.control_ids]
    assert known
    for text in known:
        assert ours.control_ids[text] not in ours.encode(f"a{text}", allow_special=False)


@pytest.mark.parametrize("listed", [["<tool_call>"], None])
def test_control_tokens_that_settings_list_stay_text_in_contents(
    tmp_path: Path, listed: list[str] | None
) -> None:
    folder = write(tmp_path, tokenizer_config={**BOS_EOS, "chat_control_tokens": listed})
    ours, reference = read(folder), PreTrainedTokenizerFast.from_pretrained(folder)
    source = "<s>{{ messages[0].content }}</s>"
    messages = [{"role": "user", "content": "<tool_call>"}]
    expected = reference.apply_chat_template(
        messages, chat_template=source, sanitize_control_tokens=True, return_dict=False
    )
    for each in (ours, ours.reserving(["x"])):
        processor = TextProcessor(each, ChatTemplate(source, name="x"), stop_ids=frozenset())
        assert processor.prompt_ids([{"role": "user", "content": "<tool_call>"}]) == expected
        token_id = each.added_ids["<tool_call>"]
        assert (token_id in expected) == (listed is None)
        assert each.decode([token_id]) == "<tool_call>"
        assert token_id in each.encode_rendered("<tool_call>" + each.protect("<tool_call>"))


def test_an_id_that_a_token_does_not_get_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = {**BOS_EOS, "added_tokens_decoder": {str(SIZE + 50): token("<|new|>")}}
    folder = write(tmp_path, tokenizer_config=config)
    ours, reference = read(folder), PreTrainedTokenizerFast.from_pretrained(folder)
    assert ours.control_ids["<|new|>"] == reference.convert_tokens_to_ids("<|new|>") == SIZE
    assert f"'<|new|>' has the id {SIZE}, not {SIZE + 50}" in caplog.text


@pytest.mark.parametrize("splits", [True, False])
def test_special_tokens_are_split_where_the_settings_say_so(
    tmp_path: Path, splits: bool, caplog: pytest.LogCaptureFixture
) -> None:
    config = {**BOS_EOS, "split_special_tokens": splits, "additional_special_tokens": ["<|new|>"]}
    folder = write(tmp_path, tokenizer_config=config)
    ours, reference = read(folder), PreTrainedTokenizerFast.from_pretrained(folder)
    assert ("split_special_tokens" in caplog.text) == splits
    source = "{{ bos_token }}<|im_start|>{{ messages[0].content }}<|im_end|><think>"
    processor = TextProcessor(ours, ChatTemplate(source, name="x"), stop_ids=frozenset())
    for text in (TEXT, "<|im_end|>", "a <think> b", *texts(30)):
        assert ours.encode_prompt(text) == reference.encode(text)
        messages = [{"role": "user", "content": text}]
        if splits or not any(each in text for each in ours.control_ids):
            expected = reference.apply_chat_template(
                messages, chat_template=source, return_dict=False
            )
            found = processor.prompt_ids([{"role": "user", "content": text}])
            assert found == expected


def test_a_token_of_the_turn_stays_text_in_contents_where_others_are_split(tmp_path: Path) -> None:
    """`<|end|>` ends a turn although it is not special: it is no text that a user can write."""
    added = {str(SIZE): token("<|end|>", special=False)}
    config = {**BOS_EOS, "split_special_tokens": True, "added_tokens_decoder": added}
    ours = read(write(tmp_path, tokenizer_config=config))
    assert SIZE in ours.encode("a<|end|>", allow_special=True)
    assert SIZE not in ours.encode("a<|end|>", allow_special=False)
    assert ours.encode_rendered(f"{ours.protect('<|end|>')}<|end|>").count(SIZE) == 1


WORD_PIECE = {
    "version": "1.0",
    "truncation": {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0},
    "padding": {
        "strategy": {"Fixed": 9},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "[PAD]",
    },
    "added_tokens": [],
    "normalizer": {
        "type": "Sequence",
        "normalizers": [
            {
                "type": "BertNormalizer",
                "clean_text": True,
                "handle_chinese_chars": True,
                "strip_accents": None,
                "lowercase": True,
            }
        ],
    },
    "pre_tokenizer": {"type": "BertPreTokenizer"},
    "post_processor": None,
    "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
    "model": {
        "type": "WordPiece",
        "unk_token": "[UNK]",
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100,
        "vocab": {
            text: i
            for i, text in enumerate(
                [
                    "[PAD]",
                    "[UNK]",
                    "[CLS]",
                    "[SEP]",
                    "a",
                    "A",
                    "é",
                    "e",
                    "É",
                    "E",
                    "世",
                    "界",
                    "世界",
                    "b",
                    "B",
                ]
            )
        },
    },
}


@pytest.mark.parametrize(
    "config",
    [
        {"do_lower_case": False},
        {"do_lower_case": False, "strip_accents": True},
        {"do_lower_case": True, "strip_accents": False, "tokenize_chinese_chars": False},
    ],
)
def test_settings_of_bert_count_more_than_tokenizer_json(
    tmp_path: Path, config: dict[str, Any]
) -> None:
    settings = {"tokenizer_class": "BertTokenizer", "unk_token": "[UNK]", **config}
    folder = write(
        tmp_path,
        tokenizer=WORD_PIECE,
        tokenizer_config=settings,
        config={"model_type": "bert"},
    )
    ours, reference = read(folder), AutoTokenizer.from_pretrained(folder)
    text = "A a É é E 世界 b B A a"
    expected = reference.encode(text, add_special_tokens=False, truncation=False, padding=False)
    assert ours.encode(text, allow_special=True) == expected


@pytest.mark.parametrize("kind", ["GPT2Tokenizer", "PreTrainedTokenizerFast"])
@pytest.mark.parametrize("before", [True, False])
def test_the_space_before_a_text_is_that_of_the_settings(
    tmp_path: Path, kind: str, before: bool
) -> None:
    plain = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    config = {**BOS_EOS, "unk_token": "<s>", "tokenizer_class": kind, "add_prefix_space": before}
    folder = write(
        tmp_path,
        tokenizer={**BACKEND, "pre_tokenizer": plain, "normalizer": None},
        tokenizer_config=config,
        config={"model_type": "gpt2"},
    )
    ours, reference = read(folder), AutoTokenizer.from_pretrained(folder)
    for text in ("lazy dogs", " lazy", "x"):
        assert ours.encode(text, allow_special=True) == reference.encode(text)


def test_truncation_and_padding_in_a_tokenizer_json_cut_no_prompt(tmp_path: Path) -> None:
    ours = read(write(tmp_path, tokenizer=WORD_PIECE))
    assert ours.encode("a b a b a b", allow_special=True) == [4, 13] * 3
    assert ours.encode_whole("a b a b a b").ids == [4, 13] * 3
    assert ours.encode_prompt("a") == [4]


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"added_tokens": {"<x>": "1"}}, "not ids by text"),
        ({"tokenizer_config": {"added_tokens_decoder": {"x": token("<x>")}}}, "added token x"),
        ({"tokenizer_config": {"added_tokens_decoder": {"7": {"content": 5}}}}, "added token 7"),
        ({"special_tokens_map": []}, "not a JSON object"),
    ],
)
def test_malformed_settings(tmp_path: Path, files: dict[str, Any], words: str) -> None:
    with pytest.raises(NotReadable, match=words):
        read(write(tmp_path, **files))


UNIGRAM = {
    **BACKEND,
    "added_tokens": [],
    "normalizer": None,
    "pre_tokenizer": {
        "type": "Metaspace",
        "replacement": "\u2581",
        "prepend_scheme": "always",
        "split": False,
    },
    "decoder": {
        "type": "Metaspace",
        "replacement": "\u2581",
        "prepend_scheme": "always",
        "split": False,
    },
    "model": {
        "type": "Unigram",
        "unk_id": 0,
        "vocab": [["<unk>", 0.0], ["\u2581", -1.0], ["a", -1.0], ["</s>", 0.0]],
        "byte_fallback": False,
    },
}


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"add_eos_token": True}, "add_eos_token, but the rules of the tokenizer add none"),
        ({"fast_tokenizer_files": ["tokenizer.json", "tokenizer.4.0.json"]}, "other versions"),
        ({"fast_tokenizer_files": ["tokenizer.json"]}, ""),
        ({"add_eos_token": False, "clean_up_tokenization_spaces": False}, ""),
        ({"clean_up_tokenization_spaces": True}, "no spaces are removed from replies"),
        ({"tokenizer_class": "LlamaTokenizer", "add_prefix_space": False}, "before texts"),
        ({"tokenizer_class": "LlamaTokenizer", "add_prefix_space": True}, ""),
    ],
)
def test_settings_without_effect_are_said_once(
    tmp_path: Path, config: dict[str, Any], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    read(write(tmp_path, tokenizer=UNIGRAM, tokenizer_config={"eos_token": "</s>", **config}))
    assert words in caplog.text
    assert len(caplog.records) == bool(words)
