"""GGUF files of rerankers, as llama.cpp's converter writes them, give transformers' scores."""

from __future__ import annotations

import json
import math
from pathlib import Path

import gguf
import pytest
import tokenizers
import torch
from safetensors.torch import load_file

from mrs.request import ModelSource, RunRequest
from mrs.run.model_loader import ModelLoader
from support.sentence_models import VOCABULARY, token_ids, write_model

QUERY, DOCUMENTS = "the key?", ["a cache keeps keys", "text {query}"]
FRAME = "[CLS] judge: {query} of {document} [SEP] a:"


def write_gguf(folder: Path, arch: str, tensors: dict[str, torch.Tensor]) -> Path:
    """A model, its WordPiece tokenizer, and a classifier."""
    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(folder / "model.gguf", arch)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_pooling_type(gguf.PoolingType.RANK)
    if arch == "modern-bert":
        writer.add_layer_norm_eps(config["norm_eps"])
        writer.add_causal_attention(False)
        writer.add_sliding_window(config["local_attention"])
        writer.add_sliding_window_pattern(3)
        writer.add_rope_freq_base(160_000.0)
        writer.add_rope_freq_base_swa(10_000.0)
    elif arch == "bert":
        writer.add_layer_norm_eps(config["layer_norm_eps"])
        writer.add_causal_attention(False)
        writer.add_token_type_count(config["type_vocab_size"])
    else:
        writer.add_head_count_kv(config["num_key_value_heads"])
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
        writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
        writer.add_classifier_output_labels(["yes", "no"])
        writer.add_chat_template([{"name": "rerank", "template": FRAME}])
    control = VOCABULARY[:4]
    texts = [t if t in control else t[2:] if t[:2] == "##" else f"\u2581{t}" for t in VOCABULARY]
    writer.add_tokenizer_model("bert")
    writer.add_token_list(texts)
    writer.add_token_types([3 if text in control else 1 for text in VOCABULARY])
    for name, index in {"unknown": 1, "cls": 2, "seperator": 3, "padding": 0}.items():
        writer.add_uint32(f"tokenizer.ggml.{name}_token_id", index)
    kind = next(kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
    names = gguf.get_tensor_name_map(kind, config["num_hidden_layers"])
    for name, tensor in tensors.items():
        known = name if name.startswith("cls.") else names.get_name(name, (".weight", ".bias"))
        assert known is not None, name
        writer.add_tensor(known, tensor.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return folder / "model.gguf"


def ranked(path: Path) -> dict[int, float]:
    request = RunRequest(ModelSource(str(path), "gguf"), cpu=True, dtype="f32", calibration=False)
    model = ModelLoader(request).load()
    found = {each.document: each.score for each in model.rank(QUERY, DOCUMENTS)}
    model.close()
    return found


def sigmoid(logit: float) -> float:
    return 1 / (1 + math.exp(-logit))


def test_a_classifier_after_a_layer(tmp_path: Path) -> None:
    reference = write_model(
        tmp_path, "bert", "AutoModelForSequenceClassification", num_labels=1, hidden_act="gelu"
    )
    spelled = {"bert.pooler.dense": "cls", "classifier": "cls.output"}
    tensors = {}
    for name, tensor in load_file(tmp_path / "model.safetensors").items():
        module, _, suffix = name.rpartition(".")
        own = f"{spelled[module]}.{suffix}" if module in spelled else name.removeprefix("bert.")
        tensors[own] = tensor
    found = ranked(write_gguf(tmp_path, "bert", tensors))
    for index, document in enumerate(DOCUMENTS):
        ids, types = token_ids(tmp_path, QUERY, document)
        with torch.inference_mode():
            pair = {"token_type_ids": torch.tensor([types])}
            logit = float(reference(torch.tensor([ids]), **pair).logits[0, 0])
        assert found[index] == pytest.approx(sigmoid(logit), abs=1e-5)


@pytest.mark.parametrize("bias", [False, True])
def test_a_classifier_with_a_norm_after_the_mean(tmp_path: Path, bias: bool) -> None:
    config = {"num_labels": 1, "classifier_pooling": "mean", "classifier_bias": bias}
    kind = "AutoModelForSequenceClassification"
    reference = write_model(tmp_path, "modernbert", kind, num_hidden_layers=4, **config)
    spelled = {"head.dense": "cls", "head.norm": "cls.norm", "classifier": "cls.output"}
    tensors = {}
    for name, tensor in load_file(tmp_path / "model.safetensors").items():
        module, _, suffix = name.rpartition(".")
        own = f"{spelled[module]}.{suffix}" if module in spelled else name.removeprefix("model.")
        tensors[own] = tensor
    found = ranked(write_gguf(tmp_path, "modern-bert", tensors))
    for index, document in enumerate(DOCUMENTS):
        ids, _ = token_ids(tmp_path, QUERY, document)
        with torch.inference_mode():
            logit = float(reference(torch.tensor([ids])).logits[0, 0])
        assert found[index] == pytest.approx(sigmoid(logit), abs=1e-5)


def test_the_rows_of_yes_and_no_in_a_frame(tmp_path: Path) -> None:
    sizes = {"head_dim": 16, "num_key_value_heads": 4, "max_position_embeddings": 512}
    reference = write_model(
        tmp_path, "qwen3", "AutoModelForCausalLM", tie_word_embeddings=True, **sizes
    )
    tensors = load_file(tmp_path / "model.safetensors")
    yes, no = 20, 30
    tensors["cls.output.weight"] = tensors["model.embed_tokens.weight"][[yes, no]]
    found = ranked(write_gguf(tmp_path, "qwen3", tensors))
    tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for index, document in enumerate(DOCUMENTS):
        framed = f"[CLS] judge: {QUERY} of {document} [SEP] a:"
        ids = tokenizer.encode(framed, add_special_tokens=False).ids
        with torch.inference_mode():
            logits = reference(torch.tensor([ids])).logits[0, -1]
        assert found[index] == pytest.approx(sigmoid(float(logits[yes] - logits[no])), abs=1e-5)
