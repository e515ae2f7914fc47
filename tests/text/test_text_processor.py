"""Text processors as a whole: which tokenizer, which template, which stop tokens."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
from text_checkpoints import BACKEND, CHATML, HELLO, ID, METADATA, TextCheckpoint, plain
from text_samples import gguf_metadata

from mrs.errors import NotReadable, Unsupported, UsageError
from mrs.request import Message, ModelSource
from mrs.source.find import open_checkpoint
from mrs.text.text_processor import TextProcessor, read_text_processor


def rendered(model: TextCheckpoint, **options: str) -> str:
    """The prompt of one message, as the tokens of the vocabulary spell it."""
    processor = read_text_processor(model, **options)
    ids = processor.prompt_ids([{"role": "user", "content": "x"}])
    return processor.tokenizer.backend.decode(ids, skip_special_tokens=False)


def test_a_chat() -> None:
    processor = read_text_processor(plain({"chat_template": CHATML}))
    ids = processor.prompt_ids(HELLO)
    assert [i for i in ids if i in ID.values()] == [
        ID["<|im_start|>"],
        ID["<|im_end|>"],
        ID["<|im_start|>"],
    ]
    shown = processor.tokenizer.backend.decode(ids, skip_special_tokens=False)
    assert shown == "<|im_start|>user\nHello <|im_end|><|im_end|>\n<|im_start|>assistant\n"


def test_the_same_chat_from_gguf() -> None:
    metadata = {**METADATA, "tokenizer.chat_template": CHATML}
    gguf = read_text_processor(TextCheckpoint("gguf", metadata))
    folder = read_text_processor(plain({"chat_template": CHATML}))
    assert gguf.prompt_ids(HELLO) == folder.prompt_ids(HELLO)
    assert gguf.encode_raw("Hello") == folder.encode_raw("Hello")
    assert ID["<|im_end|>"] in gguf.stop_ids & folder.stop_ids


def test_a_gguf_file_as_a_checkpoint_reads_it(tmp_path: Path) -> None:
    """Long arrays come lazily from the header; padding makes these long."""
    metadata = gguf_metadata(BACKEND, "qwen2", padding=600)
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "qwen2")
    for name, value in metadata.items():
        if name == "general.architecture":
            continue
        add = {str: writer.add_string, int: writer.add_uint32}.get(type(value), writer.add_array)
        add(name, value)
    writer.add_chat_template(CHATML)
    writer.add_tensor("output_norm.weight", np.ones(32, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    checkpoint = open_checkpoint(ModelSource(str(tmp_path), "gguf", filenames=("model.gguf",)))
    assert not isinstance(checkpoint.config["tokenizer.ggml.tokens"], list)
    processor = read_text_processor(checkpoint)
    assert processor.prompt_ids(HELLO) == read_text_processor(
        plain({"chat_template": CHATML})
    ).prompt_ids(HELLO)
    assert (
        processor.tokenizer.backend.get_vocab_size()
        == len(metadata["tokenizer.ggml.tokens"])
        > 1024
    )


def test_files_beside_a_gguf_go_before_what_it_carries() -> None:
    beside = {**plain({"chat_template": "beside"}).files}
    metadata = {"tokenizer.ggml.model": "unheard of", "tokenizer.chat_template": "inside"}
    assert rendered(TextCheckpoint("gguf", metadata, files=beside)) == "beside"
    only_tokenizer = {"tokenizer.json": beside["tokenizer.json"]}
    assert rendered(TextCheckpoint("gguf", metadata, files=only_tokenizer)) == "inside"


def test_which_template_wins(tmp_path: Path) -> None:
    model = plain({"chat_template": "config"})
    assert rendered(model) == "config"
    model = plain({"chat_template": "config"}, chat_template_json='{"chat_template": "json"}')
    assert rendered(model) == "json"
    model = plain({"chat_template": "config"}, chat_template_jinja="jinja")
    assert rendered(model) == "jinja"
    given = tmp_path / "given.jinja"
    given.write_text("given")
    assert rendered(model, chat_template=str(given)) == "given"
    explicit = tmp_path / "explicit.jinja"
    explicit.write_text("explicit")
    both = {"chat_template": str(given), "jinja_explicit": str(explicit)}
    assert rendered(model, **both) == "explicit"
    # A template that will not be used need not be sound.
    assert rendered(plain({"chat_template": "{% if"}), **both) == "explicit"


def test_a_template_in_tokenizer_config_form(tmp_path: Path) -> None:
    given = tmp_path / "given.json"
    given.write_text(
        json.dumps({"chat_template": "{{ bos_token }}{{ eos_token }}", "bos_token": "</s>"})
    )
    assert rendered(plain(), chat_template=str(given)) == "</s><|im_end|>"
    given.write_text("{}")
    with pytest.raises(UsageError, match="no chat_template"):
        rendered(plain(), chat_template=str(given))


def test_named_templates() -> None:
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    assert rendered(plain({"chat_template": named})) == "plain"
    assert rendered(plain({"chat_template": named[:1]})) == "tools"
    with pytest.raises(UsageError, match="rag, tool_use"):
        rendered(plain({"chat_template": [named[0], {"name": "rag", "template": ""}]}))
    with pytest.raises(Unsupported, match="neither a text nor named texts"):
        rendered(plain({"chat_template": [{"name": 1}]}))
    with pytest.raises(Unsupported, match="neither a text nor named texts"):
        rendered(plain({"chat_template": [{"name": ["default"], "template": "x"}]}))


@pytest.mark.parametrize("options", [{"chat_template": "no/such"}, {"jinja_explicit": "no/such"}])
def test_a_template_file_that_is_not_there(options: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="cannot read the chat template: No such file"):
        rendered(plain(), **options)


def test_a_template_file_that_is_no_text(tmp_path: Path) -> None:
    given = tmp_path / "given.jinja"
    given.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="not UTF-8"):
        rendered(plain(), chat_template=str(given))


def test_without_a_template_a_chat_is_a_text_to_continue() -> None:
    processor = read_text_processor(plain({"add_bos_token": True}))
    assert processor.template is None
    talk: list[Message] = [
        {"role": "system", "content": "Once"},
        {"role": "user", "content": "upon"},
    ]
    assert processor.prompt_ids(talk) == processor.encode_raw("Once\nupon")
    assert processor.encode_raw("Once")[0] == ID["<s>"]


def test_stops() -> None:
    model = plain({"eos_token": "</s>"})
    assert read_text_processor(model).stop_ids >= {ID["</s>"], ID["<|im_end|>"]}
    for value in (7, [7, 8]):
        named = {7, 8} if isinstance(value, list) else {7}
        model.config, model.generation_config = {"eos_token_id": value}, {}
        assert named <= read_text_processor(model).stop_ids
        model.config, model.generation_config = {"eos_token_id": 9}, {"eos_token_id": value}
        assert named | {9} <= read_text_processor(model).stop_ids
    model.config, model.generation_config = {"eos_token_id": None}, {"eos_token_id": [True, "x"]}
    assert (
        read_text_processor(model).stop_ids
        == read_text_processor(plain({"eos_token": "</s>"})).stop_ids
    )


def test_a_model_without_a_tokenizer() -> None:
    with pytest.raises(NotReadable, match=r"no tokenizer\.json"):
        read_text_processor(TextCheckpoint())
    with pytest.raises(NotReadable, match=r"tokenizer\.ggml\.tokens"):
        read_text_processor(TextCheckpoint("gguf", {"general.architecture": "llama"}))


TALK: list[Message] = [
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "<think>\nThey greet.\n</think>\n\nHi"},
    {"role": "user", "content": "Bye"},
]


def talk(processor: TextProcessor, *, stopped: bool = False) -> str:
    said = [{**m, "content": m["content"].partition("\n</think>")[0]} for m in TALK]
    return processor.tokenizer.backend.decode(processor.prompt_ids(said if stopped else TALK))


@pytest.mark.parametrize("switch", ["enable_thinking", "thinking"])
def test_whether_a_template_can_be_told_to_think(switch: str) -> None:
    assert not read_text_processor(plain(chat_template_jinja=CHATML)).has_thinking_switch
    switched = f"{{% if {switch} %}}<think>{{% endif %}}"
    assert read_text_processor(plain(chat_template_jinja=switched)).has_thinking_switch


def test_a_template_that_knows_no_thoughts_is_given_none() -> None:
    processor = read_text_processor(plain(chat_template_jinja=CHATML))
    assert "assistant\nHi" in talk(processor)
    assert "greet" not in talk(processor) + talk(processor, stopped=True)


def test_a_template_that_knows_thoughts_decides() -> None:
    keeping = "{{ messages[1].content.replace('</think>', 'END') }}"
    processor = read_text_processor(plain(chat_template_jinja=keeping))
    assert talk(processor) == "<think>\nThey greet.\nEND\n\nHi"
    assert talk(processor, stopped=True) == "<think>\nThey greet.\nEND\n\n"


@pytest.mark.parametrize("end", ["<think>", "<think>\n"])
def test_a_thought_that_the_template_opens_is_the_replys(end: str) -> None:
    opened = read_text_processor(plain(chat_template_jinja=CHATML + end + "{# </think> #}"))
    closed = read_text_processor(plain(chat_template_jinja=CHATML + end + "</think>"))
    assert opened.opening(opened.prompt_ids(HELLO)) == "<think>\n"
    assert closed.opening(closed.prompt_ids(HELLO)) == ""


def test_half_a_character_in_a_message_is_said() -> None:
    processor = read_text_processor(plain(**{"chat_template.jinja": "{{ messages[0].content }}"}))
    with pytest.raises(UsageError, match="lone surrogate"):
        processor.prompt_ids([{"role": "user", "content": "a\ud800"}])
