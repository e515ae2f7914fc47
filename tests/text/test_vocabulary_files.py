"""Tokenizers in files other than tokenizer.json, against the libraries that made the files.

`tests/outside/vocabulary_files.py` records the models, and compares published ones.
"""

from __future__ import annotations

import base64
import contextlib
import json
import struct
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies
from text_samples import WORDS, gguf_metadata, published_pre_tokenizers, texts, train_byte_level
from transformers import AutoTokenizer

from mrs.errors import MrsError, NotReadable, Unsupported
from mrs.request import ModelSource
from mrs.source import open_checkpoint
from mrs.source.tokenizer_files import VOCABULARY_FILES
from mrs.text.hf_tokenizer import read_hf_tokenizer
from mrs.text.text_processor import read_text_processor, read_tokenizer
from mrs.text.tokenizer import Tokenizer

RECORDED = json.loads(Path(__file__).with_name("vocabulary_files.json").read_text("utf-8"))
STRINGS: list[str] = RECORDED["strings"]
MODELS: Mapping[str, dict[str, Any]] = RECORDED["models"]
#: Models whose unknown characters sentencepiece shows as a sign of its own.
SHOW_UNKNOWN = ("unigram", "unigram-unknown", "unigram-user")
KIMI = {"auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]}}


def data_of(name: str) -> bytes:
    return zlib.decompress(base64.b64decode(MODELS[name]["data"]))


def read(files: Mapping[str, bytes | dict[str, Any]]) -> Tokenizer:
    """The tokenizer of a folder with those files; objects become JSON."""
    data = {
        name: json.dumps(file).encode() if isinstance(file, dict) else file
        for name, file in files.items()
    }

    def read_text(name: str) -> str | None:
        return data[name].decode() if name in data else None

    return read_hf_tokenizer(read_text, data.get)


def folder_of(name: str, **config: Any) -> dict[str, bytes | dict[str, Any]]:
    model = MODELS[name]
    return {
        model["file"]: data_of(name),
        "tokenizer_config.json": {**model["config"], **config},
        "config.json": {"model_type": model["model_type"]},
    }


ANY_TEXT = [read(folder_of(name)) for name in ("llama", "gemma", "kimi", "tekken")]


@pytest.mark.parametrize("name", sorted(MODELS))
def test_same_ids_and_texts_as_the_library(name: str) -> None:
    ours = read(folder_of(name))
    for text, ids, decoded in zip(
        STRINGS, MODELS[name]["ids"], MODELS[name]["decoded"], strict=True
    ):
        assert ours.encode(text, allow_special=False) == ids, text
        if name not in SHOW_UNKNOWN:
            assert ours.decode(ids) == decoded


@pytest.mark.parametrize("name", ["llama", "gemma", "kimi", "tekken"])
def test_tokens_around_a_bare_prompt(name: str) -> None:
    named = {"bos_token": "[BOS]", "eos_token": "[EOS]"} if name == "kimi" else {}
    # Kimi's file has no bos token of its own: its settings name the control tokens.
    added = {"1000": {"content": "[BOS]", "special": True}}
    first = read(folder_of(name))
    if name == "kimi":
        count = len(data_of(name).splitlines())
        added = {
            str(count): {"content": "[BOS]", "special": True},
            str(count + 1): {"content": "[EOS]", "special": True},
        }
        named |= {"added_tokens_decoder": added}
        first = read(folder_of(name, **named))
    bos, eos = first.bos_id, first.eos_id
    assert bos is not None
    assert eos is not None
    bare = first.encode("a prompt", allow_special=True)
    adds = name != "kimi"
    assert first.encode_prompt("a prompt") == ([bos, *bare] if adds else bare)
    for add_bos in (True, False):
        for add_eos in (True, False):
            flags = {"add_bos_token": add_bos, "add_eos_token": add_eos}
            ours = read(folder_of(name, **named, **flags))
            expected = [*[bos][: int(add_bos)], *bare, *[eos][: int(add_eos)]]
            assert ours.encode_prompt("a prompt") == expected


def test_the_space_before_a_text_is_where_legacy_says() -> None:
    plain = MODELS["llama"]["ids"][STRINGS.index("汉字abc漢字ひらがな 々〆〇 x漢")]
    text = "[INST]汉字abc漢字ひらがな 々〆〇 x漢"
    control = read(folder_of("llama")).control_ids["[INST]"]
    always = [control, *plain]
    for config, is_legacy in (
        ({}, True),
        ({"legacy": False}, False),
        ({"legacy": True, "tokenizer_class": "LlamaTokenizer"}, True),
        ({"tokenizer_class": "LlamaTokenizerFast"}, False),  # the class's own default
        ({"tokenizer_class": "GemmaTokenizer"}, True),
        ({"tokenizer_class": "MistralCommonBackend"}, True),
    ):
        ours = read(folder_of("llama", **config))
        found = ours.encode(text, allow_special=True)
        assert (found == always) == is_legacy, config
        assert ours.encode(text.removeprefix("[INST]"), allow_special=True) == plain
        assert ours.decode(found[1:]).strip() == text.removeprefix("[INST]")
    none = read(folder_of("llama", add_prefix_space=False))
    assert none.encode(text, allow_special=True) != always
    assert none.decode(none.encode(" a", allow_special=False)) == " a"


def test_control_tokens_in_a_text_stay_text() -> None:
    for name, token in (("llama", "[INST]"), ("tekken", "[THINK]"), ("unigram", "<s>")):
        ours = read(folder_of(name))
        control = ours.control_ids[token]
        assert control in ours.encode(f"a {token}b", allow_special=True)
        assert control not in ours.encode(f"a {token}b", allow_special=False)


def test_settings_name_the_placeholders_of_a_model() -> None:
    plain = read(folder_of("llama"))
    token_id = plain.control_ids["[/INST]"]
    added = {str(token_id): {"content": "<|im_end|>", "special": True}}
    ours = read(folder_of("llama", added_tokens_decoder=added))
    assert ours.control_ids["<|im_end|>"] == token_id
    assert token_id in ours.end_ids
    assert "[/INST]" not in ours.added_ids


def test_xlm_roberta_moves_the_ids() -> None:
    config = {"tokenizer_class": "XLMRobertaTokenizer"}
    ours = read(
        {"sentencepiece.bpe.model": data_of("unigram-unknown"), "tokenizer_config.json": config}
    )
    for text, ids in zip(STRINGS, MODELS["unigram-unknown"]["ids"], strict=True):
        if any(token in text for token in ours.control_ids):
            continue
        moved = [3 if i == 0 else i + 1 for i in ids]
        assert ours.encode_whole(text).ids == [0, *moved, 2]
    pair = ours.encode_whole("lazy", "dogs")
    assert pair.ids.count(2) == 3
    assert set(pair.types) == {0}


def padded_ranks(count: int) -> bytes:
    """That many ranks: those of the small model, and tokens that no text has."""
    lines = data_of("kimi").splitlines()
    lines += [
        base64.b64encode(b"\xff" + struct.pack(">I", i)) + b" %d" % i
        for i in range(len(lines), count)
    ]
    return b"\n".join(lines)


@pytest.mark.full
def test_llama_3_as_its_makers_publish_it() -> None:
    """A file of ranks under the name of SentencePiece's, without settings."""
    ours = read({"tokenizer.model": padded_ranks(128_000), "config.json": {"model_type": "llama"}})
    assert ours.control_ids["<|eot_id|>"] == 128_009
    assert ours.control_ids["<|python_tag|>"] == 128_010
    assert ours.control_ids["<|reserved_special_token_245|>"] == 128_255
    assert (ours.bos_id, ours.eos_id) == (128_000, 128_001)
    assert ours.backend.get_vocab_size() == 128_256
    assert ours.encode_prompt("x")[0] == 128_000
    numbers = [ours.piece(i) for i in ours.encode("1234567", allow_special=False)]
    assert b"".join(numbers) == b"1234567"
    assert max(map(len, numbers)) <= 3


def test_kimis_control_tokens_are_those_of_its_settings() -> None:
    count = len(data_of("kimi").splitlines())
    added = {str(count + 2): {"content": "<|im_end|>", "special": True}}
    ours = read(folder_of("kimi", added_tokens_decoder=added))
    assert ours.control_ids["<|im_end|>"] == count + 2
    assert ours.control_ids[f"<|reserved_token_{count + 257}|>"] == count + 257
    assert ours.backend.get_vocab_size() == count + 258
    assert count + 2 in ours.end_ids


def byte_pair_files(sections: str) -> dict[str, bytes | dict[str, Any]]:
    model = json.loads(train_byte_level(published_pre_tokenizers()[sections]).to_str())["model"]
    vocab = dict(model["vocab"])
    for token in ("<|endoftext|>", "<s>", "</s>", "<pad>", "<unk>", "<mask>"):
        vocab.setdefault(token, len(vocab))
    merges = "#version: 0.2\n" + "\n".join(" ".join(pair) for pair in model["merges"]) + "\n"
    return {"vocab.json": vocab, "merges.txt": merges.encode()}


def write(folder: Path, files: Mapping[str, bytes | dict[str, Any]]) -> Path:
    for name, file in files.items():
        data = json.dumps(file).encode() if isinstance(file, dict) else file
        (folder / name).write_bytes(data)
    return folder


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("kind", "config"),
    [
        ("GPT2Tokenizer", {}),
        ("GPT2Tokenizer", {"add_prefix_space": True, "add_bos_token": True}),
        ("GPT2Tokenizer", {"bos_token": "</s>", "add_bos_token": True, "pad_token": "<pad>"}),
        ("Qwen2Tokenizer", {"bos_token": None}),
        ("Qwen2TokenizerFast", {"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]}),
        ("GPTNeoXTokenizer", {"add_eos_token": True}),
        ("RobertaTokenizer", {}),
    ],
)
def test_vocab_and_merges_as_their_class_reads_them(
    tmp_path: Path, kind: str, config: dict[str, Any]
) -> None:
    files = byte_pair_files("qwen2")
    files["tokenizer_config.json"] = {"tokenizer_class": kind, **config}
    files["config.json"] = {"model_type": "roberta" if kind.startswith("Rob") else "gpt2"}
    reference = AutoTokenizer.from_pretrained(write(tmp_path, files))
    assert type(reference).__name__ == kind.removesuffix("Fast")
    ours = read(files)
    for text in [*texts(150), "e\u0301", " a", "x<|im_end|>"]:
        assert ours.encode_whole(text).ids == reference.encode(text)
        ids = reference.encode(text, add_special_tokens=False)
        assert ours.encode(text, allow_special=True) == ids
    assert dict(ours.special_tokens) == reference.special_tokens_map
    if kind.startswith("Rob"):
        assert ours.encode_whole("a b", "c").ids == reference.encode("a b", "c")


def test_a_model_type_has_a_class_of_its_own(tmp_path: Path) -> None:
    files = byte_pair_files("qwen2")
    files["config.json"] = {"model_type": "qwen2"}
    ours, reference = read(files), AutoTokenizer.from_pretrained(write(tmp_path, files))
    for text in texts(100):
        assert ours.encode(text, allow_special=True) == reference.encode(text)


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"do_lower_case": False},
        {"do_lower_case": False, "strip_accents": True, "tokenize_chinese_chars": False},
    ],
)
def test_word_pieces_as_bert_reads_them(tmp_path: Path, config: dict[str, Any]) -> None:
    letters = sorted({character for word in WORDS for character in (word + word.lower())})
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, "E", "e", *WORDS]
    pieces += [f"##{letter}" for letter in (*letters, "e")]
    files: dict[str, bytes | dict[str, Any]] = {
        "vocab.txt": "\n".join(pieces).encode() + b"\n",
        "tokenizer_config.json": {"tokenizer_class": "BertTokenizer", **config},
        "config.json": {"model_type": "bert"},
    }
    ours, reference = read(files), AutoTokenizer.from_pretrained(write(tmp_path, files))
    for text in [*texts(150), "Naïve [SEP] 世界x"]:
        assert ours.encode_whole(text).ids == reference.encode(text)
    both = ours.encode_whole("the dogs", "Jumps over")
    expected = reference("the dogs", "Jumps over")
    assert (both.ids, both.types) == (expected["input_ids"], expected["token_type_ids"])


def test_the_first_file_of_the_list_counts() -> None:
    everything: dict[str, bytes | dict[str, Any]] = {
        **byte_pair_files("qwen2"),
        "tekken.json": data_of("tekken"),
        "tokenizer.model": data_of("llama"),
        "vocab.txt": b"[UNK]\na\n",
    }
    assert read(everything).encode("a", allow_special=False) == read(folder_of("tekken")).encode(
        "a", allow_special=False
    )
    del everything["tekken.json"]
    assert read(everything).bos_id == 1
    with pytest.raises(NotReadable) as raised:
        read({})
    assert all(name in str(raised.value) for name in VOCABULARY_FILES)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (lambda: folder_of("llama", tokenizer_class="T5Tokenizer"), "T5Tokenizer is not known"),
        (
            lambda: folder_of("llama", auto_map={"AutoTokenizer": ["tokenization_x.XTok", None]}),
            r"tokenization_x\.XTok",
        ),
        (
            lambda: {
                **byte_pair_files("qwen2"),
                "config.json": {"tokenizer_class": "CLIPTokenizer"},
            },
            "CLIPTokenizer is not known",
        ),
        (lambda: byte_pair_files("qwen2"), "no tokenizer_class says how texts become words"),
        (lambda: {"tiktoken.model": data_of("kimi")}, "ranks without a tokenizer_class"),
        (
            lambda: {
                "tiktoken.model": data_of("kimi"),
                "tokenizer_config.json": {"tokenizer_class": "TikTokenTokenizer"},
            },
            "of class TikTokenTokenizer",
        ),
        (lambda: {"vocab.txt": b"[UNK]\na\n"}, "no tokenizer_class says how texts become words"),
        (
            lambda: {
                "vocab.txt": b"[UNK]\na\n",
                "tokenizer_config.json": {"tokenizer_class": "MPNetTokenizer"},
            },
            "MPNetTokenizer is not known",
        ),
    ],
)
def test_a_class_that_nothing_implements_is_refused_by_name(
    files: Callable[[], dict[str, bytes | dict[str, Any]]], words: str
) -> None:
    with pytest.raises(Unsupported, match=words) as raised:
        read(files())
    assert "-t" in raised.value.hint


def message(*rows: tuple[int, int | bytes]) -> bytes:
    """A message of protocol buffers, as the encoder of the format writes small ones."""
    data = b""
    for number, value in rows:
        if isinstance(value, int):
            data += bytes([number << 3 & 0x7F | (0x80 if number > 15 else 0)])
            data += bytes([number >> 4]) if number > 15 else b""
            data += bytes([value])
        else:
            data += bytes([number << 3 | 2, len(value)]) + value
    return data


PIECES = [(1, message((1, b"<unk>"), (3, 2))), (1, message((1, b"a")))]


@pytest.mark.parametrize(
    ("trainer", "normalizer", "words"),
    [
        (message((3, 3)), b"", "a model of type WORD"),
        (message((3, 4)), b"", "a model of type CHAR"),
        (message((24, 1)), b"", "treat_whitespace_as_suffix"),
        (b"", message((5, 0)), "escape_whitespaces=false"),
    ],
)
def test_rules_that_no_published_model_has_are_refused(
    trainer: bytes, normalizer: bytes, words: str
) -> None:
    data = message(*PIECES, (2, trainer), (3, normalizer))
    with pytest.raises(Unsupported, match=words):
        read({"tokenizer.model": data})


def changed_tekken(**config: Any) -> bytes:
    file = json.loads(data_of("tekken"))
    file["config"] |= config
    return json.dumps(file).encode()


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (lambda: {"tokenizer.model": data_of("llama")[:5000]}, "ends within a field"),
        (lambda: {"tokenizer.model": b"\n\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"}, "not end"),
        (lambda: {"tokenizer.model": message((1, message((3, 9))))}, "type 9"),
        (lambda: {"tokenizer.model": b"\n"}, "not a SentencePiece model"),
        (lambda: {"tokenizer.model": b"\x80\x81\xff"}, "no known format"),
        (lambda: {"tiktoken.model": b"YQ== 0\nYg== 2\n"}, "line 2: rank 2"),
        (lambda: {"tiktoken.model": b"YQ== 0\nY?== 1\n"}, "line 2"),
        (
            lambda: {"tiktoken.model": b"YQ== 0\nYg== 1\n", "tokenizer_config.json": KIMI},
            "no token for the byte",
        ),
        (
            lambda: {
                "tiktoken.model": data_of("kimi") + b"YQ== %d" % len(data_of("kimi").splitlines()),
                "tokenizer_config.json": KIMI,
            },
            "two tokens have the text 'a'",
        ),
        (lambda: {"tekken.json": changed_tekken(default_vocab_size=10**6)}, "asks for"),
        (lambda: {"tekken.json": changed_tekken(default_num_special_tokens=2)}, "special tokens"),
        (lambda: {"tekken.json": changed_tekken(pattern=1)}, "not a tekken file"),
        (
            lambda: {
                **byte_pair_files("qwen2"),
                "merges.txt": b"a b c\n",
                "config.json": {"model_type": "gpt2"},
            },
            "line 1 is not two tokens",
        ),
        (
            lambda: {
                "vocab.json": {"a": 0, "b": 2},
                "merges.txt": b"",
                "config.json": {"model_type": "gpt2"},
            },
            "ids are not 0, 1, 2",
        ),
        (
            lambda: {"vocab.json": {"a": 0}, "config.json": {"model_type": "gpt2"}},
            "merges.txt is missing",
        ),
        (
            lambda: {"vocab.txt": b"a\n", "config.json": {"model_type": "bert"}},
            "no token for unknown words",
        ),
    ],
)
def test_malformed_vocabulary_files(
    files: Callable[[], dict[str, bytes | dict[str, Any]]], words: str
) -> None:
    with pytest.raises(NotReadable, match=words):
        read(files())


def model_folder(folder: Path) -> Path:
    """A folder with a model of no layers to open, and no tokenizer."""
    folder.mkdir()
    header = json.dumps({"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen2"}))
    return folder


@pytest.mark.parametrize("name", ["llama", "tekken", "byte pairs"])
def test_a_file_that_the_user_names_is_taken_by_content(tmp_path: Path, name: str) -> None:
    folder = model_folder(tmp_path / "model")
    given = tmp_path / "given.bin"
    if name == "byte pairs":
        files = byte_pair_files("qwen2")
        write(tmp_path, {"given.bin": files["vocab.json"], "merges.txt": files["merges.txt"]})
        expected = read({**files, "config.json": {"model_type": "qwen2"}})
    else:
        given.write_bytes(data_of(name))
        expected = read(folder_of(name))
    checkpoint = open_checkpoint(ModelSource(str(folder), "safetensors", tokenizer_json=str(given)))
    ours = read_tokenizer(checkpoint)
    for text in texts(50, special=False):
        found = ours.encode(text, allow_special=False)
        assert found == expected.encode(text, allow_special=False)


def test_an_error_names_the_file_that_the_user_named(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model")
    for name, data in (("newer.json", b'{"model": {"type": "Newer"}}'), ("cut.bin", b"\n\x09")):
        (tmp_path / name).write_bytes(data)
        source = ModelSource(str(folder), "safetensors", tokenizer_json=str(tmp_path / name))
        with pytest.raises(NotReadable) as raised:
            read_tokenizer(open_checkpoint(source))
        assert raised.value.where == str(tmp_path / name)
    newer = tmp_path / "newer.json"
    with pytest.raises(NotReadable) as raised:
        read_tokenizer(
            open_checkpoint(ModelSource(str(folder), "safetensors", tokenizer_json=str(newer)))
        )
    assert "newer version of the library tokenizers" in raised.value.hint


def test_a_gguf_file_with_another_tokenizer() -> None:
    from text_checkpoints import BACKEND, TextCheckpoint

    class Given(TextCheckpoint):
        def read_bytes(self, name: str) -> bytes | None:
            return data_of("llama") if name == "tokenizer.json" else None

    given = read_tokenizer(Given("gguf", gguf_metadata(BACKEND, "qwen2")))
    assert given.encode("lazy dogs", allow_special=False) == read(folder_of("llama")).encode(
        "lazy dogs", allow_special=False
    )


def test_a_tekken_without_a_template_says_how_to_give_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    from text_checkpoints import TextCheckpoint

    files = {"tekken.json": data_of("tekken").decode()}
    read_text_processor(TextCheckpoint(files=files))
    assert "tekken.json has no chat template" in caplog.text
    assert "-c FILE" in caplog.text
    caplog.clear()
    read_text_processor(TextCheckpoint(files={**files, "chat_template.jinja": "{{ messages }}"}))
    assert not caplog.text


@given(strategies.text(max_size=80))
@settings(max_examples=150, deadline=None)
def test_any_text_survives_a_round_trip(text: str) -> None:
    for ours in ANY_TEXT:
        if "\u2581" not in text:  # the same piece as a space
            assert ours.decode(ours.encode(text, allow_special=False)) == text


@given(strategies.binary(max_size=200))
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for start in (b"", b"\n", b"{", b"YQ== 0\n", message(*PIECES)):
        with contextlib.suppress(MrsError):
            read({"tokenizer.model": start + data})


def test_errors_are_errors_of_mrs() -> None:
    """Whatever a file has, nothing but an MrsError leaves the readers."""
    for name in ("llama", "tekken", "kimi"):
        data = data_of(name)
        for cut in range(0, min(len(data), 3000), 37):
            broken = data[:cut] + b"\x00\xff" + data[cut + 2 : 6000]
            try:
                read({**folder_of(name), MODELS[name]["file"]: broken})
            except MrsError:
                continue
