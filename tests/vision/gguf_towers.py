"""Write tiny vision models as the pairs of files that llama.cpp's converter makes of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import torch
import transformers
from gguf_tensors import (
    MMPROJ,
    MODEL,
    Tensors,
    new_projector,
    permuted,
    renamed,
    under,
    write,
)
from safetensors.torch import load_file
from torch import Tensor

from support.gguf_writer import write_text_model

_KINDS = gguf.VisionProjectorType
_HALVES = {"mean": [0.5] * 3, "std": [0.5] * 3}
_SUFFIXES = (".weight", ".bias", ".input_max", ".input_min", ".output_max", ".output_min")


def write_pair(folder: Path, arch: str, write_projector: Callable[..., None]) -> None:
    """The language model of architecture `arch`, and its projector, beside the safetensors file."""
    config = json.loads((folder / "config.json").read_text())
    write_text_model(folder / MODEL, arch, *read_text_part(folder))
    write_projector(folder / MMPROJ, config, load_file(folder / "model.safetensors"))


def read_text_part(folder: Path) -> tuple[dict[str, Any], Tensors]:
    """The config of the language model, and its tensors under the names of a text model."""
    tensors = load_file(folder / "model.safetensors")
    starts = ("model.language_model.", "language_model.model.", "model.")
    start = next(start for start in starts if f"{start}embed_tokens.weight" in tensors)
    found = {f"model.{name}": tensor for name, tensor in under(tensors, start).items()}
    head = next((name for name in tensors if name.endswith("lm_head.weight")), None)
    if head is not None:
        found["lm_head.weight"] = tensors[head]
    config = transformers.AutoConfig.from_pretrained(folder).get_text_config().to_dict()
    return config, _with_split_experts(found)


def _with_split_experts(tensors: Tensors) -> Tensors:
    """All tensors, the joint matrices of Qwen's experts apart."""
    found = {}
    for name, tensor in tensors.items():
        if name.endswith(".mlp.experts.gate_up_proj"):
            stem = name.removesuffix("gate_up_proj")
            found[f"{stem}gate_proj.weight"], found[f"{stem}up_proj.weight"] = tensor.chunk(2, 1)
        elif name.endswith(".mlp.experts.down_proj"):
            found[f"{name}.weight"] = tensor
        else:
            found[name] = tensor
    return found


def _names(vision: dict[str, Any]) -> gguf.TensorNameMap:
    numbers = max(vision["num_hidden_layers"], 3)  # the map knows the projector's by these, too
    return gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, numbers)


def _convolution(rows: Tensor, size: int) -> Tensor:
    """The map of flat patches, channels last, as a convolution's (rows, 3, size, size)."""
    return rows.view(len(rows), size, size, 3).permute(0, 3, 1, 2)


def write_llama4(path: Path, config: dict[str, Any], tensors: Tensors) -> None:
    vision = {**config["vision_config"], **_HALVES, "layer_norm_eps": 1e-5}
    writer = new_projector(path, _KINDS.LLAMA4, vision)
    writer.add_vision_projector_scale_factor(round(1 / vision["pixel_shuffle_ratio"]))
    found = renamed(tensors, "vision_model.", "vision_model.", _names(vision))
    # Published files have this name; the converter of 2026 confuses it with one of Gemma 4.
    found = {name.replace("attn_post_norm", "ln2"): tensor for name, tensor in found.items()}
    found["v.position_embd.weight"] = found.pop("v.position_embd")
    found["mm.model.fc.weight"] = tensors["multi_modal_projector.linear_1.weight"]
    write(writer, found)


def write_lfm2(path: Path, config: dict[str, Any], tensors: Tensors) -> None:
    vision = {**config["vision_config"], **_HALVES, "image_size": 256}
    writer = new_projector(path, _KINDS.LFM2, vision)
    writer.add_vision_projector_scale_factor(config["downsample_factor"])
    own = {n.replace("vision_model.", "", 1): t for n, t in under(tensors, "model.").items()}
    found = renamed(own, "vision_tower.", "vision_tower.vision_model.", _names(vision))
    found |= renamed(own, "multi_modal_projector.", "multi_modal_projector.", _names(vision))
    patches = found["v.patch_embd.weight"]
    found["v.patch_embd.weight"] = _convolution(patches, vision["patch_size"])
    write(writer, found)


def _gemma4_writer(path: Path, kind: str, vision: dict[str, Any]) -> gguf.GGUFWriter:
    named = {
        **vision,
        "image_size": 224,
        "layer_norm_eps": 1e-6,
        "mean": [0.0] * 3,
        "std": [1.0] * 3,
    }
    writer = new_projector(path, None, named)
    writer.add_clip_vision_projector_type(kind)
    return writer


def write_gemma4(path: Path, config: dict[str, Any], tensors: Tensors) -> None:
    vision = config["vision_config"]
    names, found = _names(vision), {}
    own = {
        n: t for n, t in tensors.items() if n.startswith(("model.vision_", "model.embed_vision"))
    }
    for name, tensor in own.items():
        name = name.replace("model.vision_tower.encoder.", "vision_model.model.")
        name = name.replace(".linear.weight", ".weight")
        name = f"{name}.weight" if name.endswith("embedding_table") else name
        known = names.get_name(name, _SUFFIXES)
        assert known is not None, name
        found[known] = tensor.reshape(tensor.shape or (1,))
    patches = found["v.patch_embd.weight"]
    found["v.patch_embd.weight"] = _convolution(patches, vision["patch_size"])
    write(_gemma4_writer(path, _KINDS.GEMMA4V, vision), found)


def write_gemma4_unified(path: Path, config: dict[str, Any], tensors: Tensors) -> None:
    vision = config["vision_config"]
    size = vision["patch_size"] * vision["pooling_kernel_size"]
    none = dict.fromkeys(("intermediate_size", "num_hidden_layers", "num_attention_heads"), 0)
    vision = {**vision, **none, "hidden_size": vision["mm_embed_dim"]}
    names = {
        "patch_ln1": "v.patch_norm.1",
        "patch_dense": "v.patch_embd",
        "patch_ln2": "v.patch_norm.2",
        "pos_norm": "v.patch_norm.3",
        "embedding_projection": "mm.input_projection",
    }
    found = {}
    for name, tensor in tensors.items():
        *_, module, kind = name.split(".")
        if module in names:
            found[f"{names[module]}.{kind}"] = tensor
        elif kind == "pos_embedding":
            found["v.position_embd.weight"] = tensor.transpose(0, 1)
    order = torch.arange(3 * size**2).view(size, size, 3).permute(2, 0, 1).flatten()
    found["v.patch_embd.weight"] = found["v.patch_embd.weight"][:, order]
    for kind in ("weight", "bias"):
        found[f"v.patch_norm.1.{kind}"] = found[f"v.patch_norm.1.{kind}"][order]
    write(_gemma4_writer(path, "gemma4uv", vision), found)


def write_muse(path: Path, config: dict[str, Any], tensors: Tensors) -> None:
    vision, rest = config["vision_config"], {}
    size, frames = vision["patch_size"], vision["patch_temporal"]
    edge = vision["pos_emb_height"] * size * vision["merge_size"]
    writer = new_projector(path, "muse-glimmer", {**vision, **_HALVES, "image_size": edge})
    writer.add_vision_spatial_merge_size(vision["merge_size"])
    for name, tensor in under(tensors, "model.vision_tower.").items():
        if name.endswith(("q_proj.weight", "q_proj.bias", "k_proj.weight", "k_proj.bias")):
            tensor = permuted(tensor, vision["num_attention_heads"])
        for own, theirs in _MUSE.items():
            name = name.replace(own, theirs)
        rest[f"v.{name}"] = tensor
    patches = rest["v.patch_embd.weight"].view(-1, frames, 3, size, size)
    rest["v.patch_embd.weight"] = patches.sum(1)
    maps = ("vision_adapter.fc1", "vision_adapter.fc2", "vision_projection")
    for number, name in enumerate(maps):
        rest[f"mm.{number}.weight"] = tensors[f"model.{name}.weight"]
    write(writer, rest)


#: gguf-py does not know its names yet.
_MUSE = {
    "patch_embedder.patch_embedding": "patch_embd",
    "patch_embedder.position_embedding_table": "position_embd",
    "ln_pre": "pre_ln",
    "ln_post": "post_ln",
    "layers.": "blk.",
    "norm1": "ln1",
    "norm2": "ln2",
    "attn.proj": "attn_out",
    "attn.q_proj": "attn_q",
    "attn.k_proj": "attn_k",
    "attn.v_proj": "attn_v",
    "mlp.fc1": "ffn_up",
    "mlp.fc2": "ffn_down",
}


def write_glm(path: Path, config: dict[str, Any], tensors: Tensors) -> None:
    """Queries, keys and values are one matrix, and frames of a film have one each."""
    vision = config["vision_config"]
    named = {
        **vision,
        "num_hidden_layers": vision["depth"],
        "num_attention_heads": vision["num_heads"],
        "layer_norm_eps": vision["rms_norm_eps"],
    }
    writer = new_projector(path, _KINDS.GLM4V, named)
    writer.add_vision_projection_dim(config["text_config"]["hidden_size"])
    writer.add_uint32(gguf.Keys.ClipVision.IMAGE_MIN_PIXELS, 2 * 24 * 24)
    writer.add_uint32(gguf.Keys.ClipVision.IMAGE_MAX_PIXELS, 2 * 24 * 24 * 9)
    patches = tensors.pop("model.visual.patch_embed.proj.weight")
    found = {"v.patch_embd.weight": patches[:, :, 0], "v.patch_embd.weight.1": patches[:, :, 1]}
    write(writer, found | renamed(tensors, "model.visual.", "visual.", _names(named)))


def write_paddleocr(path: Path, config: dict[str, Any], tensors: Tensors) -> None:
    """As the converter does, with the size of the largest image in place of the tower's."""
    vision = config["vision_config"]
    writer = new_projector(path, _KINDS.PADDLEOCR, {**vision, "image_size": 1680})
    writer.add_vision_min_pixels(2 * 12**2)
    writer.add_vision_max_pixels(9 * 12**2)
    found = renamed(tensors, "visual.", "model.", _names(vision))
    write(writer, found | renamed(tensors, "mlp_AR.", "mlp_AR.", _names(vision)))


def write_llava(path: Path, config: dict[str, Any], tensors: Tensors) -> None:
    """As the script for LLaVA does, which calls the two maps of an MLP by each other's names."""
    vision, layer = config["vision_config"], config["vision_feature_layer"]
    layers = vision["num_hidden_layers"] + 1 + layer
    named = {"hidden_act": "quick_gelu", **vision, "num_hidden_layers": layers}
    writer = new_projector(path, "mlp", named)
    writer.add_array("clip.vision.feature_layer", [layers])
    if pairs := config.get("image_grid_pinpoints"):
        writer.add_array(
            "clip.vision.image_grid_pinpoints", [edge for pair in pairs for edge in pair]
        )
    own = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    tower = {n.replace("vision_model.", ""): t for n, t in under(own, "vision_tower.").items()}
    found = renamed(tower, "", "vision_tower.vision_model.", _names(vision))
    unused = [f"v.blk.{index}." for index in range(layers, vision["num_hidden_layers"])]
    kept = {n: t for n, t in found.items() if not n.startswith(("v.post_ln", *unused))}
    other = {"ffn_up": "ffn_down", "ffn_down": "ffn_up"}
    kept = {
        ".".join(other.get(part, part) for part in name.split(".")): tensor
        for name, tensor in kept.items()
    }
    for linear, number in (("linear_1", 0), ("linear_2", 2)):
        for name, tensor in under(own, f"multi_modal_projector.{linear}.").items():
            kept[f"mm.{number}.{name}"] = tensor
    if "image_newline" in own:
        kept["model.image_newline"] = own["image_newline"]
    write(writer, kept)
