"""A tiny Qwen3-VL of random weights, which takes images and videos."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

CONTROLS = ("<s>", "<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>")
TEMPLATE = """
{%- for message in messages %}{{ message['role'] + ': ' }}
{%- if message['content'] is string %}{{ message['content'] }}{% else %}
{%- for part in message['content'] %}
{%- if part['type'] == 'image' %}{{ '<|vision_start|><|image_pad|><|vision_end|>' }}
{%- elif part['type'] == 'video' %}{{ '<|vision_start|><|video_pad|><|vision_end|>' }}
{%- else %}{{ part['text'] }}{% endif %}
{%- endfor %}{% endif %}{{ ' ' }}
{%- endfor %}{% if add_generation_prompt %}assistant:{% endif %}"""
SIZE = {"shortest_edge": 24 * 24 * 8, "longest_edge": 24 * 24 * 9 * 8}


def byte_level_tokenizer(controls: Sequence[str] = CONTROLS) -> Any:
    """Transformers' tokenizer with a token a byte, and control tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({sign: number for number, sign in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(text, normalized=False) for text in controls])
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<s>")


def write_qwen3_vl(target: Path) -> None:
    """Write the model, its tokenizer and the settings of its processors."""
    tokenizer = byte_level_tokenizer()
    ids = {text: tokenizer.convert_tokens_to_ids(text) for text in CONTROLS}
    config = transformers.Qwen3VLConfig(
        text_config={
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 1024,
            "initializer_range": 0.08,
            "pad_token_id": 0,
            "bos_token_id": None,
            "eos_token_id": None,
            "vocab_size": len(tokenizer),
            "head_dim": 16,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e4,
                "mrope_section": [4, 2, 2],
                "mrope_interleaved": True,
            },
        },
        vision_config={
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 48,
            "out_hidden_size": 64,
            "num_heads": 4,
            "patch_size": 6,
            "num_position_embeddings": 25,
            "deepstack_visual_indexes": [0],
        },
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
    )
    torch.manual_seed(5)
    transformers.Qwen3VLForConditionalGeneration(config).save_pretrained(target)
    tokenizer.save_pretrained(target)
    (target / "chat_template.jinja").write_text(TEMPLATE)
    half = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "patch_size": 6, "merge_size": 2}
    images = {**half, "size": {"shortest_edge": 24 * 24, "longest_edge": 24 * 24 * 9}}
    (target / "preprocessor_config.json").write_text(json.dumps(images))
    nested = {"video_processor": {**half, "size": SIZE, "fps": 2}}
    (target / "processor_config.json").write_text(json.dumps(nested))
