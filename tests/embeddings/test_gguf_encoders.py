"""GGUF files of encoders give the hidden states of transformers, and its tokens."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import pytest
import tokenizers
import torch
from encoder_cases import CASES, Encoded
from safetensors.torch import load_file
from test_encoders import difference, hidden_states

from mrs.architecture.describe import describe
from mrs.architecture.pooler import Pooler
from mrs.devices.probe import probe_devices
from mrs.errors import NotReadable
from mrs.plan.memory.stored_weights import ModelWeightsInfo
from mrs.plan.plan import make_plan
from mrs.request import ModelSource, RunRequest
from mrs.source.find import open_checkpoint
from mrs.text.gguf_tokenizer import read_gguf_tokenizer
from support.planned_decoder import planned_decoder
from support.sentence_models import VOCABULARY, write_tokenizer

#: GGUF files do not say that a BERT has the approximation of GELU.
FILES = [
    case
    for case in CASES
    if case.family in ("bert", "nomic_bert") and "hidden_act" not in case.changes
]
TOKENS_KEY = "tokenizer.ggml.tokens"


def write_gguf(encoded: Encoded, path: Path, pooling: int = 2) -> None:
    """What llama.cpp's converter writes, without a tokenizer."""
    config = json.loads((encoded.folder / "config.json").read_text())
    arch = encoded.case.family.replace("_", "-")
    writer = gguf.GGUFWriter(path, arch)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType(pooling))
    writer.add_token_type_count(config["type_vocab_size"])
    if arch == "nomic-bert":
        writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    kind = next(kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
    names = gguf.get_tensor_name_map(kind, config["num_hidden_layers"])
    for name, tensor in load_file(encoded.folder / "model.safetensors").items():
        if "pooler" not in name:
            known = names.get_name(
                name.replace("nomic_bert.", ""), try_suffixes=(".weight", ".bias")
            )
            assert known is not None, name
            writer.add_tensor(known, tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("encoded", FILES, ids=lambda case: case.id, indirect=True)
def test_hidden_states_are_those_of_transformers(encoded: Encoded, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(encoded, path)
    source = ModelSource(str(path), "gguf")
    checkpoint = open_checkpoint(source)
    description = describe(checkpoint)
    assert description.spec.pooler == Pooler("cls", size=description.spec.hidden_size)
    host = probe_devices(what_if=(), cpu_only=True)
    request = RunRequest(source, dtype="f32", cpu=True)
    plan = make_plan(request, ModelWeightsInfo(checkpoint, description), host, cpu_packs=False)
    _, decoder = planned_decoder(checkpoint, description, plan, (torch.device("cpu"),))
    assert difference(hidden_states(decoder, [encoded.ids])[0], encoded.hidden) < 1e-4


@pytest.mark.parametrize("encoded", FILES[:1], ids=lambda case: case.id, indirect=True)
def test_a_reranker_needs_its_classes(encoded: Encoded, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(encoded, path, pooling=4)
    with pytest.raises(NotReadable, match="lacks 'classes'"):
        describe(open_checkpoint(ModelSource(str(path), "gguf")))


def metadata() -> dict[str, object]:
    """The tokenizer of the test models as llama.cpp's converter writes it."""
    control = VOCABULARY[:4]
    texts = [
        text if text in control else text[2:] if text.startswith("##") else f"\u2581{text}"
        for text in VOCABULARY
    ]
    ids = {"unknown": 1, "cls": 2, "seperator": 3, "padding": 0}
    return {
        "general.architecture": "bert",
        "tokenizer.ggml.model": "bert",
        TOKENS_KEY: texts,
        "tokenizer.ggml.token_type": [3 if text in control else 1 for text in VOCABULARY],
        **{f"tokenizer.ggml.{name}_token_id": index for name, index in ids.items()},
    }


@pytest.mark.parametrize("pair", [(), ("tokens keep values.",)], ids=["one", "two"])
def test_tokens_are_those_of_the_tokenizer_file(pair: tuple[str, ...], tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    ours = read_gguf_tokenizer(metadata())
    text = "The CACHE keeps keys, \u00e9 and [SEP] \u4e2d values"
    expected = theirs.encode(text, *pair)
    assert ours.encode_whole(text, *pair) == (expected.ids, expected.type_ids)


@pytest.mark.parametrize("name", ["$x:y", "a:b"])
def test_a_special_token_is_no_template(name: str) -> None:
    changed = metadata()
    changed[TOKENS_KEY] = ["[PAD]", "[UNK]", name, *changed[TOKENS_KEY][3:]]  # type: ignore[index]
    with pytest.raises(NotReadable, match="around texts"):
        read_gguf_tokenizer(changed)


def test_a_special_token_must_exist() -> None:
    with pytest.raises(NotReadable, match="no token"):
        read_gguf_tokenizer({**metadata(), "tokenizer.ggml.seperator_token_id": 999})
