"""Configs as they are published, which are older than those that transformers 5 writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from test_encoders import difference, hidden_states, load

from mrs.architecture.describe import describe
from mrs.architecture.description import Description
from mrs.errors import MrsError, NotReadable, Unsupported
from mrs.request import ModelSource
from mrs.source.find import open_checkpoint
from support.sentence_models import SIZES, token_ids, write_model
from support.sentence_models import load as load_whole


def described(folder: Path, config: dict[str, Any] | None = None) -> Description:
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return describe(open_checkpoint(ModelSource(str(folder), "safetensors")))


def saved_config(folder: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return config


def test_nomic_bert_with_the_keys_of_gpt2(tmp_path: Path) -> None:
    write_model(tmp_path, "nomic_bert")
    ours, config = described(tmp_path), saved_config(tmp_path)
    published = {
        "model_type": "nomic_bert",
        "architectures": ["NomicBertModel"],
        "n_embd": config["hidden_size"],
        "n_head": config["num_attention_heads"],
        "n_inner": config["intermediate_size"],
        "n_layer": config["num_hidden_layers"],
        "n_positions": config["max_position_embeddings"],
        "layer_norm_epsilon": config["layer_norm_eps"],
        "rotary_emb_base": 1000,
        "rotary_emb_fraction": 1.0,
        "rotary_emb_interleaved": False,
        "rotary_emb_scale_base": None,
        "rotary_scaling_factor": None,
        "activation_function": "swiglu",
        "prenorm": False,
        "qkv_proj_bias": False,
        "mlp_fc1_bias": False,
        "mlp_fc2_bias": False,
        "type_vocab_size": 2,
        "vocab_size": config["vocab_size"],
    }
    assert described(tmp_path, published) == ours
    with pytest.raises(Unsupported, match="prenorm = True"):
        described(tmp_path, {**published, "prenorm": True})


def test_modernbert_of_transformers_4(tmp_path: Path) -> None:
    write_model(tmp_path, "modernbert", num_hidden_layers=5)
    ours, config = described(tmp_path), saved_config(tmp_path)
    for key in ("layer_types", "rope_parameters"):
        del config[key]
    older = {
        **config,
        "global_rope_theta": 160_000.0,
        "local_rope_theta": 10_000.0,
        "global_attn_every_n_layers": 3,
    }
    assert described(tmp_path, older) == ours
    assert described(tmp_path, {**older, "local_rope_theta": 9.0}) != ours


def test_gte_as_it_is_published(tmp_path: Path) -> None:
    """Its file names its model `new`; its rope is that of `mrs.families.new`, in linear steps."""
    factor, base, head_dim = 8.0, 20_000.0, 16
    rope = {
        "rope_type": "linear",
        "rope_theta": base * factor,
        "factor": factor ** (2 / head_dim),
    }
    model = write_model(tmp_path, "gte", rope_parameters=rope)
    published = {
        **saved_config(tmp_path),
        "model_type": "new",
        "position_embedding_type": "rope",
        "rope_theta": base,
        "rope_scaling": {"type": "ntk", "factor": factor},
        "layer_norm_type": "layer_norm",
        "pack_qkv": True,
        "logn_attention_scale": False,
    }
    del published["rope_parameters"]
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({f"new.{k}": v for k, v in tensors.items()}, tmp_path / "model.safetensors")
    assert not described(tmp_path, published).warnings
    ids = torch.randint(4, 90, (60,)).tolist()
    with torch.inference_mode():
        expected = model(torch.tensor([ids])).last_hidden_state[0]
    *_, decoder = load(tmp_path)
    assert difference(hidden_states(decoder, [ids])[0], expected) < 1e-4
    for changes in ({"pack_qkv": False}, {"logn_attention_scale": True}):
        with pytest.raises(Unsupported, match=next(iter(changes))):
            described(tmp_path, {**published, **changes})
    scaling = {"type": "ntk", "factor": factor, "mixed_b": 0.6}
    with pytest.raises(Unsupported, match="mixed_b"):
        described(tmp_path, {**published, "rope_scaling": scaling})


def test_the_texts_of_embedding_gemma_2(tmp_path: Path) -> None:
    """A file of the whole model, with a tower for images, which is named and left out."""
    sizes = {"num_hidden_layers": 2, "num_key_value_heads": 2, "head_dim": 16}
    text = transformers.AutoConfig.for_model(
        "embedding_gemma2_text", **{**SIZES, **sizes, "global_head_dim": 16, "sliding_window": 9}
    )
    tower = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16}
    config = transformers.AutoConfig.for_model(
        "embedding_gemma2", text_config=text, vision_config={**tower, **heads}, audio_config=None
    )
    model = transformers.AutoModel.from_config(config).float().eval()
    model.save_pretrained(tmp_path)
    (warning,) = described(tmp_path).warnings
    assert "vision_tower" in warning
    ids = torch.randint(4, 90, (40,)).tolist()
    with torch.inference_mode():
        expected = model.language_model(torch.tensor([ids])).last_hidden_state[0]
    *_, decoder = load(tmp_path)
    assert difference(hidden_states(decoder, [ids])[0], expected) < 1e-4


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"conv_kernel_size": 3}, "conv_kernel_size"),
        ({"embedding_size": 32}, "embedding_size"),
        ({"position_buckets": 256, "max_relative_positions": 100}, "256 buckets"),
        ({"pooler_hidden_act": "tanh"}, "pooler_hidden_act"),
    ],
)
def test_what_deberta_does_not_do_here(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    more = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}
    write_model(tmp_path, "deberta-v2", "AutoModelForSequenceClassification", **more)
    with pytest.raises(Unsupported, match=words):
        described(tmp_path, {**saved_config(tmp_path), **changes})


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({"id2label": {"0": "a", "1": "a"}}, NotReadable, "same name"),
        ({"id2label": None, "num_labels": 10**9}, NotReadable, "num_labels"),
        ({"problem_type": "other"}, Unsupported, "problem_type"),
    ],
)
def test_classes_that_are_wrong(
    tmp_path: Path, changes: dict[str, Any], kind: type[MrsError], words: str
) -> None:
    write_model(tmp_path, "electra", "AutoModelForSequenceClassification", num_labels=2)
    with pytest.raises(kind, match=words):
        described(tmp_path, {**saved_config(tmp_path), **changes})


@pytest.mark.parametrize(
    ("problem", "probabilities"),
    [
        (None, lambda logits: logits.softmax(-1)),
        ("single_label_classification", lambda logits: logits.softmax(-1)),
        ("multi_label_classification", lambda logits: logits.sigmoid()),
        ("regression", lambda logits: logits),
    ],
)
def test_what_makes_probabilities(
    tmp_path: Path, problem: str | None, probabilities: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    kind = "AutoModelForSequenceClassification"
    model = write_model(tmp_path, "electra", kind, num_labels=3, problem_type=problem)
    loaded = load_whole(tmp_path)
    (found,) = loaded.classify(["the key"])
    loaded.close()
    with torch.inference_mode():
        logits = model(torch.tensor([token_ids(tmp_path, "the key")[0]])).logits[0]
    expected = probabilities(logits).tolist()
    assert list(found.probabilities.values()) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({"position_embedding_type": "relative_key"}, Unsupported, "relative_key"),
        ({"is_decoder": True}, Unsupported, "is_decoder"),
        ({"hidden_act": "elu"}, Unsupported, "'elu'"),
        ({"type_vocab_size": 3}, NotReadable, "token_type_embeddings"),
        ({"max_position_embeddings": 0}, NotReadable, "at least 1"),
    ],
)
def test_what_is_not_supported_is_named(
    tmp_path: Path, changes: dict[str, Any], kind: type[MrsError], words: str
) -> None:
    write_model(tmp_path, "bert")
    with pytest.raises(kind, match=words):
        described(tmp_path, {**saved_config(tmp_path), **changes})


def test_positions_before_the_first_are_not_enough(tmp_path: Path) -> None:
    write_model(tmp_path, "xlm-roberta")
    config = {**saved_config(tmp_path), "max_position_embeddings": 1, "pad_token_id": 3}
    with pytest.raises(NotReadable, match="positions are before the first"):
        described(tmp_path, config)
