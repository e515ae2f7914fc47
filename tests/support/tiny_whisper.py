"""A tiny Whisper of random weights, whose windows last a second."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers

from support.tiny_qwen3_vl import byte_level_tokenizer

CONTROLS = (
    *("<s>", "<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|de|>", "<|fr|>"),
    *("<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>"),
    "<|notimestamps|>",
)
#: Rows of a window of a second, and steps of time in it.
ROWS = 50
BANDS = 20
SIZES: dict[str, Any] = {
    "num_mel_bins": BANDS,
    "d_model": 48,
    "encoder_layers": 2,
    "encoder_attention_heads": 3,
    "encoder_ffn_dim": 72,
    "decoder_layers": 2,
    "decoder_attention_heads": 3,
    "decoder_ffn_dim": 64,
    "max_source_positions": ROWS,
    "max_target_positions": 64,
}


def write_whisper(target: Path, *, multilingual: bool = True, seed: int = 3, **sizes: Any) -> Any:
    """Write the model, its tokenizer and its settings; transformers' model."""
    tokenizer = byte_level_tokenizer(CONTROLS)
    ids = {text: tokenizer.convert_tokens_to_ids(text) for text in CONTROLS}
    end, start = ids["<|endoftext|>"], ids["<|startoftranscript|>"]
    special = {"pad_token_id": end, "bos_token_id": end, "eos_token_id": end}
    config = transformers.WhisperConfig(
        vocab_size=len(tokenizer) + ROWS + 1,
        decoder_start_token_id=start,
        begin_suppress_tokens=None,
        **special,
        **{**SIZES, **sizes},
    )
    torch.manual_seed(seed)
    model = transformers.WhisperForConditionalGeneration(config).eval()
    for name, each in model.named_parameters():
        # So that what is heard, and what was said, decide about the next token.
        torch.nn.init.normal_(each, std=0.08 if each.ndim > 1 else 0.1)
        if name.endswith("layer_norm.weight"):
            torch.nn.init.normal_(each, 1.0, 0.1)
    settings = {
        **special,
        "decoder_start_token_id": start,
        # Of bytes, only printable ones of ASCII are said.
        "suppress_tokens": [*range(94, 256), 33, 40, start],
        "begin_suppress_tokens": [20, end],
        "is_multilingual": multilingual,
        "no_timestamps_token_id": ids["<|notimestamps|>"],
        "prev_sot_token_id": ids["<|startofprev|>"],
        "max_initial_timestamp_index": 50,
        "max_length": sizes.get("max_target_positions", SIZES["max_target_positions"]),
    }
    if multilingual:
        settings["lang_to_id"] = {each: ids[each] for each in ("<|en|>", "<|de|>", "<|fr|>")}
        settings["task_to_id"] = {n: ids[f"<|{n}|>"] for n in ("transcribe", "translate")}
    model.generation_config = transformers.GenerationConfig(**settings)
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
    (target / "generation_config.json").write_text(json.dumps(settings))
    return model
