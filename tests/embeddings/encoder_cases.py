"""Tiny random encoders: for each family its defaults, and everything switched the other way."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from support.sentence_models import SIZES

#: Longer than the windows, and than 16 tokens for the native kernel of many queries.
TOKENS = 70
_SIZES: dict[str, Any] = {
    **SIZES,
    "vocab_size": 160,
    "num_hidden_layers": 3,
    "max_position_embeddings": 128,
    "pad_token_id": 1,
}


@dataclass(frozen=True)
class EncoderCase:
    family: str
    name: str
    changes: dict[str, Any] = field(hash=False)

    @property
    def id(self) -> str:
        return f"{self.family}-{self.name}"

    @property
    def config(self) -> dict[str, Any]:
        return {**_SIZES, **self.changes}


@dataclass(frozen=True)
class Encoded:
    """A saved encoder, token ids, and transformers' hidden states (T, hidden) of them."""

    case: EncoderCase
    folder: Path
    ids: list[int]
    hidden: Tensor


_ODD_HEADS = {"hidden_size": 72, "num_attention_heads": 6}
_GEMMA = {
    "use_bidirectional_attention": True,
    "head_dim": 16,
    "query_pre_attn_scalar": 16,
    "num_key_value_heads": 2,
    "sliding_window": 20,
}
_GEMMA_2 = {
    "num_hidden_layers": 4,
    "sliding_window_pattern": 2,
    "sliding_window": 10,
    "head_dim": 16,
    "num_key_value_heads": 2,
    "global_head_dim": 32,
    "hidden_size_per_layer_input": 24,
    "embedding_dim": 96,
}
_EUROBERT = {"bos_token_id": None, "eos_token_id": None, "mask_token_id": 2}
#: As version 3 is published, but with buckets for less than the text.
_DEBERTA = {
    "relative_attention": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_buckets": 16,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "position_biased_input": False,
}

CASES = (
    EncoderCase("bert", "default", {}),
    EncoderCase(
        "bert", "switched", {**_ODD_HEADS, "hidden_act": "gelu_new", "layer_norm_eps": 1e-5}
    ),
    EncoderCase("xlm-roberta", "default", {"type_vocab_size": 1}),
    EncoderCase("xlm-roberta", "switched", {**_ODD_HEADS, "pad_token_id": 3, "hidden_act": "gelu"}),
    EncoderCase("roberta", "default", {"type_vocab_size": 1}),
    EncoderCase("nomic_bert", "default", {}),
    EncoderCase(
        "nomic_bert",
        "switched",
        {**_ODD_HEADS, "rope_parameters": {"rope_type": "default", "rope_theta": 20.0}},
    ),
    EncoderCase("modernbert", "default", {}),
    EncoderCase(
        "modernbert",
        "switched",
        {
            "attention_bias": True,
            "mlp_bias": True,
            "norm_bias": True,
            "local_attention": 12,
            "hidden_activation": "silu",
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    EncoderCase("distilbert", "default", {"hidden_dim": 96}),
    EncoderCase("distilbert", "switched", {**_ODD_HEADS, "hidden_dim": 100, "activation": "relu"}),
    EncoderCase("camembert", "default", {"type_vocab_size": 1}),
    EncoderCase("electra", "default", {"embedding_size": 32}),
    EncoderCase("electra", "switched", {**_ODD_HEADS, "embedding_size": 72, "hidden_act": "silu"}),
    EncoderCase("eurobert", "default", _EUROBERT),
    EncoderCase(
        "eurobert",
        "switched",
        {
            **_EUROBERT,
            "num_key_value_heads": 2,
            "head_dim": 20,
            "attention_bias": True,
            "mlp_bias": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 20.0},
        },
    ),
    EncoderCase("jina_embeddings_v3", "default", {}),
    EncoderCase(
        "jina_embeddings_v3",
        "switched",
        {
            **_ODD_HEADS,
            "type_vocab_size": 2,
            "hidden_act": "gelu_new",
            "rope_parameters": {"rope_type": "default", "rope_theta": 20.0},
        },
    ),
    EncoderCase("gte", "default", {}),
    EncoderCase(
        "gte",
        "switched",
        {
            **_ODD_HEADS,
            "type_vocab_size": 0,
            "hidden_act": "silu",
            "layer_norm_eps": 1e-5,
            "rope_parameters": {"rope_type": "default", "rope_theta": 20.0},
        },
    ),
    EncoderCase("mpnet", "default", {}),
    EncoderCase("mpnet", "switched", {**_ODD_HEADS, "hidden_act": "gelu_new"}),
    EncoderCase("deberta-v2", "default", _DEBERTA),
    EncoderCase(
        "deberta-v2",
        "switched",
        {
            **_ODD_HEADS,
            "relative_attention": True,
            "pos_att_type": "p2c|c2p",
            "max_relative_positions": 40,
            "type_vocab_size": 2,
            "layer_norm_eps": 1e-5,
        },
    ),
    EncoderCase(
        "deberta-v2", "half", {**_DEBERTA, "pos_att_type": ["c2p"], "position_buckets": 96}
    ),
    EncoderCase("deberta-v2", "absolute", {"pos_att_type": ["p2c"]}),
    EncoderCase("embedding_gemma2_text", "default", _GEMMA_2),
    EncoderCase(
        "embedding_gemma2_text",
        "switched",
        {
            **_GEMMA_2,
            "num_attention_heads": 6,
            "head_dim": 20,
            "global_head_dim": 24,
            "num_global_key_value_heads": 3,
            "attention_bias": True,
            "hidden_activation": "silu",
            "embedding_dim": 40,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 30.0},
                "full_attention": {"rope_type": "default", "rope_theta": 90.0},
            },
        },
    ),
    EncoderCase("gemma3_text", "default", _GEMMA),
    EncoderCase("gemma3_text", "switched", {**_GEMMA, "attention_bias": True, "head_dim": 20}),
)
