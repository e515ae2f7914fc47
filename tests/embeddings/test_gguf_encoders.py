"""GGUF files of encoders give the hidden states of transformers, and its tokens."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import pytest
import tokenizers
import torch
from encoder_cases import CASES, Encoded, EncoderCase
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

#: The architecture of files of each family.
ARCHITECTURES = {
    "bert": "bert",
    "xlm-roberta": "bert",
    "camembert": "bert",
    "distilbert": "bert",
    "nomic_bert": "nomic-bert",
    "modernbert": "modern-bert",
    "jina_embeddings_v3": "jina-bert-v3",
    "eurobert": "eurobert",
}
#: GGUF files do not say that a BERT has the approximation of GELU, or norms with a bias.
UNSAID = {"hidden_act", "activation", "norm_bias"}
FILES = [
    case for case in CASES if case.family in ARCHITECTURES and not UNSAID & {*case.changes}
] + [
    EncoderCase("modernbert", "first", {"local_attention": 12, "hidden_activation": "silu"}),
    EncoderCase("xlm-roberta", "padded", {"type_vocab_size": 2, "pad_token_id": 3}),
]
TOKENS_KEY = "tokenizer.ggml.tokens"


def write_gguf(encoded: Encoded, path: Path, pooling: int = 2) -> None:
    """What llama.cpp's converter writes, without a tokenizer."""
    config = json.loads((encoded.folder / "config.json").read_text())
    family = encoded.case.family
    arch = ARCHITECTURES[family]
    first = config["pad_token_id"] + 1 if family in ("xlm-roberta", "camembert") else 0
    layers = config.get("num_hidden_layers") or config["n_layers"]
    writer = gguf.GGUFWriter(path, arch)
    writer.add_context_length(config["max_position_embeddings"] - first)
    writer.add_embedding_length(config.get("hidden_size") or config["dim"])
    writer.add_block_count(layers)
    writer.add_feed_forward_length(config.get("hidden_dim") or config["intermediate_size"])
    writer.add_head_count(config.get("num_attention_heads") or config["n_heads"])
    if "rms_norm_eps" in config:
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
        writer.add_head_count_kv(config["num_key_value_heads"])
        writer.add_key_length(config["head_dim"])
    else:
        eps = config.get("layer_norm_eps") or config.get("norm_eps") or 1e-12
        writer.add_layer_norm_eps(eps)
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType(pooling))
    writer.add_token_type_count(config.get("type_vocab_size", 1))
    if rope := config.get("rope_parameters"):
        writer.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
        if local := rope.get("sliding_attention"):
            writer.add_rope_freq_base_swa(local["rope_theta"])
            writer.add_sliding_window(config["local_attention"])
            writer.add_string(f"{arch}.hidden_activation", config["hidden_activation"])
            writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
    kind = next(kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
    names = gguf.get_tensor_name_map(kind, layers)
    for name, tensor in load_file(encoded.folder / "model.safetensors").items():
        if "pooler" not in name:
            usual = name.replace("nomic_bert.", "").replace("model.", "")
            known = names.get_name(usual, try_suffixes=(".weight", ".bias"))
            assert known is not None, name
            rows = tensor[first:] if "position_embeddings" in name else tensor
            writer.add_tensor(known, rows.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.few(9)
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
