"""The files of the demo model agree with each other, with transformers and with gguf-py."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

import mrs.demo
from demo_training.text.__main__ import train
from demo_training.text.dialogues import dialogues
from demo_training.text.draft_head import DraftHead
from demo_training.text.fit import Recipe
from demo_training.text.network import Llama, Shape
from demo_training.text.train_head import HEAD_FILE, TARGET_FILE, train_head
from demo_training.text.vocabulary import END, START, encode_chats, render
from support.model_files import DEMO_HEAD

MODEL = Path(mrs.demo.__file__).parent / "model"
HELD_OUT = Path(__file__).parent / "held_out.txt"


@pytest.fixture(scope="module")
def reader() -> gguf.GGUFReader:
    return gguf.GGUFReader(MODEL / "demo.gguf")


def values(reader: gguf.GGUFReader, name: str) -> Any:
    return reader.fields[name].contents()


def test_both_forms_fit_in_eight_megabytes() -> None:
    assert sum(path.stat().st_size for path in MODEL.iterdir()) <= 8_000_000


def test_the_head_is_read_as_trained() -> None:
    """By its names, beside the model's own, which are those of the index."""
    head, model = load_file(DEMO_HEAD / HEAD_FILE), load_file(MODEL / TARGET_FILE)
    trained = DraftHead(Shape())
    trained.load_state_dict({name.removeprefix("mtp."): each for name, each in head.items()})
    index = json.loads((DEMO_HEAD / f"{TARGET_FILE}.index.json").read_text(encoding="utf-8"))
    files = {**dict.fromkeys(model, TARGET_FILE), **dict.fromkeys(head, HEAD_FILE)}
    assert index["weight_map"] == files


def test_gguf_tokenizer_is_tokenizer_json(reader: gguf.GGUFReader) -> None:
    ours = json.loads((MODEL / "tokenizer.json").read_text(encoding="utf-8"))
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    tokens = values(reader, "tokenizer.ggml.tokens")
    assert tokens == [tokenizer.id_to_token(i) for i in range(tokenizer.get_vocab_size())]
    assert values(reader, "tokenizer.ggml.merges") == [" ".join(m) for m in ours["model"]["merges"]]
    assert tokens[values(reader, "tokenizer.ggml.eos_token_id")] == END
    settings = json.loads((MODEL / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert values(reader, "tokenizer.chat_template") == settings["chat_template"]


def test_gguf_weights_are_the_safetensors_weights(reader: gguf.GGUFReader) -> None:
    config = AutoConfig.from_pretrained(MODEL)
    state = load_file(MODEL / "model.safetensors")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    assert len(tensors) == len(state)
    for source, weight in state.items():
        stored = tensors[names.get_name(source, try_suffixes=(".weight",))]
        decoded = gguf.quants.dequantize(stored.data, stored.tensor_type)
        expected = weight.float().numpy()
        if "q_proj" in source or "k_proj" in source:
            decoded = np.stack(
                [decoded[row] for row in half_split_rows(len(decoded), config.head_dim)]
            )
        largest = np.abs(expected).max(axis=-1, keepdims=True)
        # Half a step of the block's scale, and the scale's own rounding to float16.
        assert (np.abs(decoded - expected) <= largest * (0.5 / 127 + 2**-11) + 1e-7).all(), source


def half_split_rows(rows: int, head_dim: int) -> list[int]:
    """Where each half-split rotary row stands in a file that keeps pairs side by side."""
    half = head_dim // 2
    return [
        start + (2 * i if i < half else 2 * (i - half) + 1)
        for start in range(0, rows, head_dim)
        for i in range(head_dim)
    ]


def test_transformers_reads_the_folder_as_trained() -> None:
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    ours = Llama(Shape())
    ours.load_state_dict(load_file(MODEL / "model.safetensors"))
    tokens = torch.arange(3, 303).reshape(2, 150)
    with torch.no_grad():
        expected = model(tokens).logits
        torch.testing.assert_close(ours.logits(ours(tokens)), expected, atol=2e-3, rtol=1e-3)


def test_chats_are_read_as_the_template_writes_them() -> None:
    theirs = AutoTokenizer.from_pretrained(MODEL)
    ours = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    chats = [chat.messages() for chat in dialogues(3, 100)]
    for messages, (ids, own) in zip(chats, encode_chats(ours, chats), strict=True):
        assert theirs.apply_chat_template(messages, tokenize=False) == render(messages)
        assert theirs.apply_chat_template(messages, return_dict=False) == ids
        written = "".join(m["content"] + END for m in messages if m["role"] == "assistant")
        mine = [token for token, is_own in zip(ids, own, strict=True) if is_own]
        assert ours.decode(mine, skip_special_tokens=False) == written
    prompt = theirs.apply_chat_template(chats[0][:1], tokenize=False, add_generation_prompt=True)
    assert prompt == render(chats[0][:1], answer_next=True)


@pytest.mark.full
def test_held_out_text_was_not_trained_on() -> None:
    text, recipe = HELD_OUT.read_text(encoding="utf-8"), Recipe()
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    assert len(tokenizer.encode(text).ids) >= 8000
    assert text.count(f"{START}assistant\n") > 100
    chats = dialogues(recipe.seed, recipe.dialogues)
    assert not any(len(c.exchanges) > 1 and render(c.messages()) in text for c in chats)


@pytest.mark.full
def test_training_writes_a_model_that_loads(tmp_path: Path) -> None:
    shape = Shape(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, head_dim=32)
    shape = Shape(**{**shape.as_config(), "num_key_value_heads": 1, "intermediate_size": 32})
    train(tmp_path, Recipe(dialogues=2000), shape)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert model.generation_config.eos_token_id == model.config.eos_token_id == 2
    assert len(gguf.GGUFReader(tmp_path / "demo.gguf").tensors) == 11
    target = (tmp_path / TARGET_FILE).read_bytes()
    train_head(tmp_path, Recipe(dialogues=4000), shape)
    assert (tmp_path / TARGET_FILE).read_bytes() == target
    head = load_file(tmp_path / HEAD_FILE)
    assert {name.partition(".")[0] for name in head} == {"mtp"}
    assert all(each.isfinite().all() for each in head.values())
