"""Configs as they are published, which are older than those that transformers 5 writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mrs.architecture.describe import describe
from mrs.architecture.description import Description
from mrs.errors import MrsError, NotReadable, Unsupported
from mrs.request import ModelSource
from mrs.source.find import open_checkpoint
from support.sentence_models import write_model


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
