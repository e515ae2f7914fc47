"""GGUF files of tiny vision models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import torch
from vision_reference import VisionReference
from vision_running import Conversation, difference, load_vision_model

from mrs.request import ModelSource

MODEL, MMPROJ = "model.gguf", "mmproj-model.gguf"
#: Of CLIP, which most families use.
MEAN, STD = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
Tensors = dict[str, torch.Tensor]


def write(writer: gguf.GGUFWriter, tensors: Tensors) -> None:
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def renamed(tensors: Tensors, prefix: str, own: str, names: gguf.TensorNameMap) -> Tensors:
    found = {}
    for name, tensor in tensors.items():
        if name.startswith(prefix):
            known = names.get_name(name.replace(prefix, own, 1), (".weight", ".bias"))
            assert known is not None, name
            found[known] = tensor
    return found


def write_sizes(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    """What all language models have in their metadata."""
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    if "head_dim" in config:
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_tokenizer_model("none")
    writer.add_vocab_size(config["vocab_size"])


def permuted(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of q or k, the two of a rotary pair adjacent."""
    return rows.view(heads, 2, -1, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


def write_text(
    writer: gguf.GGUFWriter, config: dict[str, Any], tensors: Tensors, *, permutes: bool
) -> None:
    """The language model, whose tensors have the names of a text model."""
    archs = {name: each for each, name in gguf.MODEL_ARCH_NAMES.items()}
    write_sizes(writer, config)
    if permutes:
        head_dim = config["hidden_size"] // config["num_attention_heads"]
        writer.add_rope_dimension_count(config.get("head_dim") or head_dim)
    names = gguf.get_tensor_name_map(archs[writer.arch], config["num_hidden_layers"])
    text = renamed(tensors, "", "", names)
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    for name, tensor in text.items():
        part = name.split(".")[-2]
        if permutes and part in heads:
            text[name] = permuted(tensor, heads[part])
    write(writer, text)


def under(tensors: Tensors, prefix: str) -> Tensors:
    """The tensors whose names start with `prefix`, without it."""
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}


def new_projector(path: Path, kind: str | None, vision: dict[str, Any]) -> gguf.GGUFWriter:
    """A file with the metadata that all mmproj files have."""
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_clip_has_vision_encoder(True)
    if kind is not None:
        writer.add_clip_projector_type(kind)
    writer.add_vision_image_size(vision["image_size"])
    writer.add_vision_patch_size(vision["patch_size"])
    writer.add_vision_embedding_length(vision["hidden_size"])
    writer.add_vision_feed_forward_length(vision["intermediate_size"])
    writer.add_vision_block_count(vision["num_hidden_layers"])
    writer.add_vision_head_count(vision["num_attention_heads"])
    writer.add_vision_attention_layernorm_eps(vision["layer_norm_eps"])
    writer.add_vision_image_mean(vision.get("mean", MEAN))
    writer.add_vision_image_std(vision.get("std", STD))
    if vision.get("hidden_act") == "silu":
        writer.add_vision_use_silu(True)
    elif vision.get("hidden_act") != "quick_gelu":
        writer.add_vision_use_gelu(True)
    return writer


def check_prompt(truth: VisionReference, images: int) -> None:
    """The files beside the model give the logits of transformers for a prompt with images."""
    assert prompt_difference(truth, images) < 1e-4


def prompt_difference(truth: VisionReference, images: int) -> float:
    """Between the logits of the files beside the model and those of transformers."""
    source = ModelSource(str(truth.folder), "gguf", filenames=(MODEL,), mmproj=MMPROJ)
    model = load_vision_model(truth.folder, source=source)
    config = truth.case.config
    token = config.get("image_token_id", config.get("image_token_index"))
    # Published vocabularies have the token elsewhere than the tiny one.
    spec = replace(model.description.spec, vision=replace(model.vision, image_token_id=token))
    model = replace(model, description=replace(model.description, spec=spec))
    prompt = truth.prompts[images]
    ids, shown = model.shown(prompt.text, prompt.images)
    assert ids == prompt.ids
    return difference(Conversation(model).feed(ids, shown), prompt.logits)
