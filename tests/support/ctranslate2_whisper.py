"""Writes a Whisper in the format of CTranslate2 as safetensors files with transformers' names.

A file of that format is a list of names, shapes, types and bytes, without code; only versions with
weights in float16 or float32 are read here.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

_TYPES = {0: np.float32, 1: np.int8, 2: np.int16, 3: np.int32, 4: np.float16}
_MODULES = {
    "self_attention/layer_norm": "self_attn_layer_norm",
    "self_attention/linear_1": "self_attn.out_proj",
    "attention/layer_norm": "encoder_attn_layer_norm",
    "attention/linear_0": "encoder_attn.q_proj",
    "attention/linear_2": "encoder_attn.out_proj",
    "ffn/layer_norm": "final_layer_norm",
    "ffn/linear_0": "fc1",
    "ffn/linear_1": "fc2",
}
#: Several projections in one matrix, whose keys have a bias of zeros.
_FUSED = {
    "self_attention/linear_0": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention/linear_1": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
}
_PARAMETERS = {"gamma": "weight", "beta": "bias", "encodings": "weight"}
_OUTSIDE = {"embeddings": "embed_tokens", "position_encodings": "embed_positions"}


def read_variables(data: bytes) -> dict[str, NDArray[Any]]:
    """The arrays of a model.bin by their names."""
    at = 0

    def take(form: str) -> int:
        nonlocal at
        (value,) = struct.unpack_from(f"<{form}", data, at)
        at += struct.calcsize(form)
        return int(value)

    def name() -> str:
        nonlocal at
        size = take("H")
        at += size
        return data[at - size : at].rstrip(b"\0").decode()

    assert take("I") == 6, "another version of the format"
    assert name() == "WhisperSpec"
    take("I")
    found = {}
    for _ in range(take("I")):
        key = name()
        shape = [take("I") for _ in range(take("B"))]
        kind, size = take("B"), take("I")
        if kind in _TYPES:
            found[key] = np.frombuffer(data[at : at + size], _TYPES[kind]).reshape(shape)
        at += size
    return found


def _tensors(variables: dict[str, NDArray[Any]]) -> Iterator[tuple[str, NDArray[Any]]]:
    for key, value in variables.items():
        if value.ndim == 0 or key.endswith("num_heads"):
            continue
        half, *inside, parameter = key.split("/")
        name = _PARAMETERS.get(parameter, parameter)
        prefix = f"model.{half}"
        if inside[0].startswith("layer_") and inside[0] != "layer_norm":
            prefix += f".layers.{inside[0].removeprefix('layer_')}"
            module = "/".join(inside[1:])
            if module in _FUSED:
                parts = _FUSED[module]
                for part, rows in zip(parts, np.split(value, len(parts)), strict=True):
                    if name == "weight" or not part.endswith("k_proj"):
                        yield f"{prefix}.{part}.{name}", rows
                continue
            yield f"{prefix}.{_MODULES[module]}.{name}", value
        elif inside:
            yield f"{prefix}.{_OUTSIDE.get(inside[0], inside[0])}.{name}", value


def write_published_whisper(weights: Path, config_file: Path, tokens: Path, target: Path) -> None:
    """Write model.bin, config.json and tokenizer.json, at these paths, as transformers has them."""
    variables = read_variables(weights.read_bytes())
    tensors = {name: np.ascontiguousarray(value) for name, value in _tensors(variables)}
    settings, tokenizer = (json.loads(each.read_text()) for each in (config_file, tokens))
    ids = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    convolution = tensors["model.encoder.conv1.weight"]
    start, end = ids["<|startoftranscript|>"], ids["<|endoftext|>"]
    layers = {
        half: len(
            {name.split(".")[3] for name in tensors if name.startswith(f"model.{half}.layers.")}
        )
        for half in ("encoder", "decoder")
    }
    config = {
        "architectures": ["WhisperForConditionalGeneration"],
        "model_type": "whisper",
        "vocab_size": len(tensors["model.decoder.embed_tokens.weight"]),
        "d_model": convolution.shape[0],
        "num_mel_bins": convolution.shape[1],
        "max_source_positions": len(tensors["model.encoder.embed_positions.weight"]),
        "max_target_positions": len(tensors["model.decoder.embed_positions.weight"]),
        "decoder_start_token_id": start,
        **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), end),
    }
    for half, count in layers.items():
        config[f"{half}_layers"] = count
        config[f"{half}_attention_heads"] = int(variables[f"{half}/num_heads"])
        config[f"{half}_ffn_dim"] = len(tensors[f"model.{half}.layers.0.fc1.bias"])
    languages = {text: i for text, i in ids.items() if start < i < ids["<|translate|>"]}
    generation = {
        "suppress_tokens": settings["suppress_ids"],
        "begin_suppress_tokens": settings["suppress_ids_begin"],
        "decoder_start_token_id": start,
        **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), end),
        "is_multilingual": bool(languages),
        "lang_to_id": languages,
        "task_to_id": {each: ids[f"<|{each}|>"] for each in ("transcribe", "translate")},
        "no_timestamps_token_id": ids["<|notimestamps|>"],
        "prev_sot_token_id": ids["<|startofprev|>"],
        "max_initial_timestamp_index": 50,
        "max_length": 448,
    }
    target.mkdir(parents=True, exist_ok=True)
    save_file(tensors, target / "model.safetensors", {"format": "pt"})
    (target / "config.json").write_text(json.dumps(config))
    (target / "generation_config.json").write_text(json.dumps(generation))
    (target / "tokenizer.json").write_bytes(tokens.read_bytes())
