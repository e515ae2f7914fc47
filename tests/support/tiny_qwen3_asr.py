"""A tiny Qwen3-ASR of random weights, which hears."""

from __future__ import annotations

import json
from pathlib import Path

import torch
import transformers
from transformers.models.qwen3_asr.feature_extraction_qwen3_asr import Qwen3ASRFeatureExtractor

from support.tiny_qwen3_vl import byte_level_tokenizer

CONTROLS = ("<s>", "<|audio_pad|>", "<|audio_start|>", "<|audio_end|>")
TEMPLATE = """
{%- for message in messages %}{{ message['role'] + ': ' }}
{%- if message['content'] is string %}{{ message['content'] }}{% else %}
{%- for part in message['content'] %}
{%- if part['type'] == 'audio' %}{{ '<|audio_start|><|audio_pad|><|audio_end|>' }}
{%- else %}{{ part['text'] }}{% endif %}
{%- endfor %}{% endif %}{{ ' ' }}
{%- endfor %}{% if add_generation_prompt %}assistant:{% endif %}"""
BANDS = 32
#: The sizes of a tiny tower.
TOWER = {
    "encoder_layers": 2,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 48,
    "d_model": 32,
    "output_dim": 64,
    "downsample_hidden_size": 8,
    "n_window_infer": 200,
    "initializer_range": 0.08,
}


def write_qwen3_asr(target: Path) -> None:
    """Write the model, its tokenizer and the settings of its processor."""
    tokenizer = byte_level_tokenizer(CONTROLS)
    config = transformers.AutoConfig.for_model(
        "qwen3_asr",
        text_config={
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "max_position_embeddings": 4096,
            "initializer_range": 0.08,
            "pad_token_id": 0,
            "bos_token_id": None,
            "eos_token_id": None,
            "vocab_size": len(tokenizer),
        },
        audio_config={
            "num_mel_bins": BANDS,
            **TOWER,
        },
        audio_token_id=tokenizer.convert_tokens_to_ids("<|audio_pad|>"),
        eos_token_id=[],
    )
    torch.manual_seed(6)
    model = transformers.AutoModelForMultimodalLM.from_config(config)
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
    (target / "chat_template.jinja").write_text(TEMPLATE)
    features = Qwen3ASRFeatureExtractor(feature_size=BANDS).to_dict()
    (target / "processor_config.json").write_text(json.dumps({"feature_extractor": features}))
