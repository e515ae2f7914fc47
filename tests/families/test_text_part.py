"""The language model inside a multimodal checkpoint runs on its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from parity_cases import CASES
from running import TOLERANCE, Conversation, difference, load
from safetensors.torch import load_file, save_file

from mrs.request import ModelSource
from support.llama4_output import complete_llama4_output

_VISION: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "head_dim": 16,
    "image_size": 32,
    "patch_size": 16,
}


_QWEN_VISION: dict[str, Any] = {
    "depth": 1,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_heads": 2,
    "out_hidden_size": 64,
    "num_position_embeddings": 16,
}


_MOONVIT: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "pos_emb_height": 4,
    "pos_emb_width": 4,
}
_EXAONE_VISION: dict[str, Any] = {**_QWEN_VISION, "num_key_value_heads": 1}
_LLAMA_VISION: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 32,
    "patch_size": 16,
    "vision_output_dim": 32,
    "projector_input_dim": 32,
    "projector_output_dim": 32,
}
_GEMMA_VISION: dict[str, Any] = {**_VISION, "num_key_value_heads": 2}


def _text_config(case_id: str) -> dict[str, Any]:
    case = next(case for case in CASES if case.id == case_id)
    return {**case.config, "model_type": case.family, "pad_token_id": 0}


@pytest.mark.few(5)
@pytest.mark.parametrize(
    ("config_class", "text", "vision"),
    [
        (transformers.Gemma3Config, "gemma3_text-odd", "siglip_vision_model"),
        (transformers.Mistral3Config, "mistral-default", "pixtral"),
        (transformers.Idefics3Config, "llama-default", "idefics3_vision"),
        (transformers.SmolVLMConfig, "llama-default", "smolvlm_vision"),
        (transformers.Qwen3_5Config, "qwen3_5_text-odd", _QWEN_VISION),
        (transformers.Qwen3_5MoeConfig, "qwen3_5_moe_text-odd", _QWEN_VISION),
        (transformers.Llama4Config, "llama4_text-default", _LLAMA_VISION),
        (transformers.Gemma4Config, "gemma4_text-shared", _GEMMA_VISION),
        (transformers.Kimi_K25Config, "deepseek_v3-default", _MOONVIT),
        (transformers.Exaone4_5_Config, "exaone4-odd", _EXAONE_VISION),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
@torch.no_grad()
def test_text_alone(
    config_class: type[Any], text: str, vision: str | dict[str, Any], tmp_path: Path
) -> None:
    complete_llama4_output()
    torch.manual_seed(3)
    config = config_class(
        text_config=_text_config(text),
        vision_config={**_VISION, "model_type": vision} if isinstance(vision, str) else vision,
        image_token_index=159,
    )
    model = transformers.AutoModelForImageTextToText.from_config(
        config, attn_implementation="eager"
    )
    model.float().eval().save_pretrained(tmp_path)
    _name_layers_as_published(tmp_path / "model.safetensors")
    prompt = torch.randint(150, (48,))
    theirs = model(prompt[None]).logits[0]
    loaded = load(ModelSource(str(tmp_path), "safetensors"))
    ours = Conversation(loaded.decoder, chunk_tokens=7).feed(prompt.tolist())
    assert difference(ours, theirs) < TOLERANCE


def _name_layers_as_published(file: Path) -> None:
    """transformers 5.24 saves Kimi's layers under the name of those of its tower."""
    tensors = load_file(file)
    start = "language_model.model.blocks."
    named = {name.replace(start, "language_model.model.layers."): t for name, t in tensors.items()}
    save_file(named, file, {"format": "pt"})
