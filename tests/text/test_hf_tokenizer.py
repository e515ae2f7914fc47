"""tokenizer.json and the settings beside it, against transformers reading the same folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from test_gguf_sentencepiece import metadata_of
from test_published_templates import EXPECTED, SYSTEM, TALK, TEMPLATES
from text_samples import CONTROL, published_pre_tokenizers, texts, train_byte_level
from tokenizers import decoders, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from mrs.errors import NotReadable, Unsupported
from mrs.text.gguf_tokenizer import read_gguf_tokenizer
from mrs.text.hf_tokenizer import read_hf_tokenizer
from mrs.text.tokenizer import Tokenizer

SPECIAL = {"bos_token": "<s>", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}


@pytest.fixture(scope="module")
def tokenizer_json() -> dict[str, Any]:
    sections = published_pre_tokenizers()["smollm"]
    settings: dict[str, Any] = json.loads(train_byte_level(sections).to_str())
    return settings


def write(folder: Path, tokenizer_json: dict[str, Any], **config: Any) -> Path:
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json))
    (folder / "tokenizer_config.json").write_text(json.dumps({**SPECIAL, **config}))
    return folder


def read(folder: Path) -> Tokenizer:
    def read_text(name: str) -> str | None:
        path = folder / name
        return path.read_text(encoding="utf-8") if path.exists() else None

    return read_hf_tokenizer(read_text)


def transformers_reading(folder: Path) -> PreTrainedTokenizerFast:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    assert isinstance(tokenizer, PreTrainedTokenizerFast)
    return tokenizer


def test_same_ids_and_texts(tmp_path: Path, tokenizer_json: dict[str, Any]) -> None:
    write(tmp_path, tokenizer_json)
    ours, reference = read(tmp_path), transformers_reading(tmp_path)
    assert (ours.bos_id, ours.eos_id) == (reference.bos_token_id, reference.eos_token_id)
    assert ours.backend.get_vocab_size() == len(reference)
    for text in texts(300):
        ids = ours.encode(text, allow_special=True)
        assert ids == reference.encode(text, add_special_tokens=False)
        assert ours.decode(ids) == reference.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("add_bos", [None, True, False])
@pytest.mark.parametrize("processed", [True, False])
def test_bos_before_a_bare_prompt(
    tmp_path: Path, tokenizer_json: dict[str, Any], add_bos: bool | None, processed: bool
) -> None:
    settings = dict(tokenizer_json)
    if processed:
        bos = next(t["id"] for t in settings["added_tokens"] if t["content"] == "<s>")
        template = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", bos)])
        settings["post_processor"] = json.loads(template.__getstate__())
    write(tmp_path, settings, **({} if add_bos is None else {"add_bos_token": add_bos}))
    ours, reference = read(tmp_path), transformers_reading(tmp_path)
    bare = reference.encode("a prompt", add_special_tokens=False)
    expected = [ours.bos_id, *bare] if (processed if add_bos is None else add_bos) else bare
    assert ours.encode_prompt("a prompt") == expected
    if add_bos in (None, processed):  # transformers 5 leaves the setting unread
        assert reference.encode("a prompt") == expected


def test_tokens_that_only_the_settings_have(tmp_path: Path, tokenizer_json: dict[str, Any]) -> None:
    first = len(tokenizer_json["model"]["vocab"]) + len(tokenizer_json["added_tokens"])
    flags = {"lstrip": False, "normalized": False, "single_word": False}
    added = {
        str(first): {"content": "<|user|>", "rstrip": True, "special": True, **flags},
        str(first + 1): {"content": "<tool>", "rstrip": False, "special": False, **flags},
    }
    write(tmp_path, tokenizer_json, added_tokens_decoder=added)
    ours, reference = read(tmp_path), transformers_reading(tmp_path)
    text = "<|user|>\nhello <tool>\n <|user|>  x"
    assert ours.encode(text, allow_special=True) == reference.encode(text, add_special_tokens=False)
    assert ours.control_ids["<|user|>"] == first
    assert "<tool>" not in ours.control_ids


def test_settings_may_change_how_a_token_matches(
    tmp_path: Path, tokenizer_json: dict[str, Any]
) -> None:
    token = next(t for t in tokenizer_json["added_tokens"] if t["content"] == "</s>")
    changed = {name: value for name, value in token.items() if name != "id"} | {"rstrip": True}
    write(tmp_path, tokenizer_json, added_tokens_decoder={str(token["id"]): changed})
    ours, reference = read(tmp_path), transformers_reading(tmp_path)
    assert ours.encode("</s>\n\nx", allow_special=True)[0] == token["id"]
    for text in ("</s>\n\nx", "a </s> b"):
        expected = reference.encode(text, add_special_tokens=False)
        assert ours.encode(text, allow_special=True) == expected
        assert ours.encode_rendered(ours.protect("<s>") + text)[-len(expected) :] == expected


def test_special_tokens_as_objects_and_from_the_older_file(
    tmp_path: Path, tokenizer_json: dict[str, Any]
) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer_json))
    older = {"bos_token": {"content": "<s>", "special": True}, "eos_token": "</s>"}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(older))
    assert read(tmp_path).special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}
    newer: dict[str, Any] = {"eos_token": "<|im_end|>"}
    for config in (newer, {**newer, "added_tokens_decoder": {}}):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        assert read(tmp_path).special_tokens == transformers_reading(tmp_path).special_tokens_map


def test_named_tokens_become_special_if_the_vocabulary_has_them(
    tmp_path: Path, tokenizer_json: dict[str, Any]
) -> None:
    word = next(text for text in tokenizer_json["model"]["vocab"] if len(text) > 3)
    ours = read(write(tmp_path, tokenizer_json, pad_token=word))
    token_id = tokenizer_json["model"]["vocab"][word]
    assert ours.control_ids[word] == token_id
    assert ours.encode(f"({word})", allow_special=True)[1] == token_id


@pytest.mark.parametrize("more_rows", [0, 1])
def test_a_named_token_without_a_row_stays_text(
    tmp_path: Path,
    tokenizer_json: dict[str, Any],
    more_rows: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    size = len(tokenizer_json["model"]["vocab"]) + len(tokenizer_json["added_tokens"])
    write(tmp_path, tokenizer_json, unk_token="[new]", additional_special_tokens=["[newer]"])
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": size + more_rows}))
    ours, reference = read(tmp_path), transformers_reading(tmp_path)
    assert ours.backend.get_vocab_size() == size + more_rows
    assert max(ours.encode("[new] [newer]", allow_special=True)) < size + more_rows
    stays = ["[new]", "[newer]"][more_rows:]
    assert [text for text in ("[new]", "[newer]") if f"{text!r}" in caplog.text] == stays
    if more_rows:
        expected = reference.encode("a [new] b", add_special_tokens=False)
        assert ours.encode("a [new] b", allow_special=True) == expected


@pytest.mark.parametrize("scheme", ["first", "always", "never"])
def test_sentencepiece_as_newer_files_spell_it(scheme: str) -> None:
    """Spaces by a Metaspace step, where the older files have normalizers."""
    backend = read_gguf_tokenizer(metadata_of("llama")).backend
    backend.normalizer = None
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    if scheme == "never":
        backend.decoder = decoders.Sequence(
            [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
        )
    ours = read_hf_tokenizer({"tokenizer.json": backend.to_str()}.get)
    assert ours.strips_leading_space == (scheme != "never")
    for text in texts(300, special=False):
        if "\u2581" in text:
            continue
        ids = ours.encode(text, allow_special=False)
        assert ours.decode(ids) == backend.decode(ids)
        around = f"<s>{ours.protect(text)} <s></s>"
        assert ours.encode_rendered(around) == backend.encode(f"<s>{text} <s></s>").ids
        marked = ours.encode_rendered(f"<s>{ours.protect(text + '</s>')}</s>")
        assert marked.count(2) == 1
        assert marked[: len(ids) // 2] == backend.encode(f"<s>{text}</s>").ids[: len(ids) // 2]


def test_end_of_turn_tokens(tmp_path: Path, tokenizer_json: dict[str, Any]) -> None:
    ours = read(write(tmp_path, tokenizer_json))
    assert ours.end_ids == {ours.added_ids["<|im_end|>"], ours.added_ids["<|endoftext|>"]}


@pytest.mark.few(9)
@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_same_prompt_ids_as_apply_chat_template(
    tmp_path: Path, tokenizer_json: dict[str, Any], name: str
) -> None:
    without_system = ("mistral-v0.1", "gemma", "phi-3", "starcoder2-instruct")
    messages = TALK if name in without_system else [SYSTEM, *TALK]
    write(tmp_path, tokenizer_json)
    reference = transformers_reading(tmp_path)
    expected = reference.apply_chat_template(
        messages, chat_template=TEMPLATES[name], add_generation_prompt=True, return_dict=False
    )
    from mrs.text.template import ChatTemplate
    from mrs.text.text_processor import TextProcessor

    ours = read(tmp_path)
    processor = TextProcessor(ours, ChatTemplate(TEMPLATES[name], name=name), stop_ids=ours.end_ids)
    assert processor.prompt_ids(messages) == expected


def test_contents_with_control_tokens_in_a_chat(
    tmp_path: Path, tokenizer_json: dict[str, Any]
) -> None:
    """Where contents end at the template's tokens, transformers' own guard gives the same."""
    write(tmp_path, tokenizer_json)
    reference = transformers_reading(tmp_path)
    ours = read(tmp_path)
    for token in CONTROL:
        content = f"{token}"
        expected = reference.apply_chat_template(
            [{"role": "user", "content": content}],
            chat_template="<s>{{ messages[0].content }}</s>",
            sanitize_control_tokens=True,
            return_dict=False,
        )
        assert ours.encode_rendered(f"<s>{ours.protect(content)}</s>") == expected


@pytest.mark.parametrize(
    ("files", "error", "words"),
    [
        ({}, NotReadable, "no tokenizer.json"),
        ({"tokenizer.json": "{"}, NotReadable, "not a tokenizer"),
        ({"tokenizer.json": "[" * 100_000}, NotReadable, "not a tokenizer"),
        ({"tokenizer.json": "good", "tokenizer_config.json": "[]"}, NotReadable, "not a JSON"),
        ({"tokenizer.json": "good", "tokenizer_config.json": "{"}, NotReadable, "not valid JSON"),
        (
            {
                "tokenizer.json": "good",
                "tokenizer_config.json": '{"added_tokens_decoder": {"1": {}}}',
            },
            NotReadable,
            "added token 1",
        ),
    ],
)
def test_malformed_files(
    tokenizer_json: dict[str, Any], files: dict[str, str], error: type[Exception], words: str
) -> None:
    texts_of = {
        name: json.dumps(tokenizer_json) if text == "good" else text for name, text in files.items()
    }
    with pytest.raises(error, match=words):
        read_hf_tokenizer(texts_of.get)


def test_decoders_that_nobody_wrote_down(tokenizer_json: dict[str, Any]) -> None:
    ctc = {"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": True}
    for decoder in (None, ctc):
        text = json.dumps({**tokenizer_json, "decoder": decoder})
        with pytest.raises(Unsupported, match="decoder"):
            read_hf_tokenizer({"tokenizer.json": text}.get)


@pytest.mark.parametrize(
    "config",
    [r'{"bos_token": "\ud800"}', r'{"added_tokens_decoder": {"1": {"content": "\udfff"}}}'],
)
def test_half_a_character_in_a_token_is_said(config: str) -> None:
    files = {"tokenizer.json": "{}", "tokenizer_config.json": config}
    with pytest.raises(NotReadable, match=r"lone surrogate \(tokenizer_config\.json\)"):
        read_hf_tokenizer(files.get)
