"""Qwen-VL models as llama.cpp's converter writes it gives what the safetensors files give."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from gguf_tensors import MMPROJ, MODEL, Tensors, check_prompt, new_projector, renamed, write
from gguf_towers import read_text_part
from qwen3_cases import QWEN3_VL
from qwen_cases import QWEN_VL
from safetensors.torch import load_file
from vision_reference import VisionReference, make_vision_reference
from vision_running import Conversation, difference, load_vision_model

from mrs.architecture.describe import describe
from mrs.engine.image_input import place_images
from mrs.errors import NotReadable, Unsupported
from mrs.media.media_loader import MediaLoader
from mrs.media.read_media import read_media
from mrs.request import IMAGE_MARK, ModelSource
from mrs.source.find import open_checkpoint
from support.gguf_writer import write_text_model
from support.suites import first
from support.video_files import video

#: One of each family.
CASES = (QWEN_VL[0], QWEN_VL[2], *(case for case in QWEN3_VL if case.name == "default"))
#: Family -> the architecture of its language model.
ARCHS = {
    "qwen2_vl": "qwen2vl",
    "qwen2_5_vl": "qwen2vl",
    "qwen3_vl": "qwen3vl",
    "qwen3_vl_moe": "qwen3vlmoe",
    "qwen3_5": "qwen35",
    "qwen3_5_moe": "qwen35moe",
}


def write_qwen(folder: Path, name: str, family: str, sections: list[int]) -> None:
    text, tensors = read_text_part(folder)
    rope = {**text["rope_parameters"], "mrope_section": sections}
    write_text_model(folder / name, ARCHS[family], {**text, "rope_parameters": rope}, tensors)


def write_projector(path: Path, family: str, vision: dict[str, Any], tensors: Tensors) -> None:
    layers, patch = vision["depth"], vision["patch_size"]
    tapped = vision.get("deepstack_visual_indexes", [])
    kinds = gguf.VisionProjectorType
    types = {"qwen2_vl": kinds.QWEN2VL, "qwen2_5_vl": kinds.QWEN25VL}
    positions = vision.get("num_position_embeddings")
    named = {
        "image_size": patch * int(positions**0.5) if positions else 560,
        "patch_size": patch,
        "hidden_size": vision.get("embed_dim") or vision["hidden_size"],
        # In the files of Qwen2-VL this is the size of the language model.
        "intermediate_size": vision.get("intermediate_size") or vision["hidden_size"],
        "num_hidden_layers": layers,
        "num_attention_heads": vision["num_heads"],
        "layer_norm_eps": 1e-6,
    }
    writer = new_projector(path, types.get(family, kinds.QWEN3VL), named)
    writer.add_uint32(gguf.Keys.ClipVision.IMAGE_MIN_PIXELS, 24 * 24)
    writer.add_uint32(gguf.Keys.ClipVision.IMAGE_MAX_PIXELS, 24 * 24 * 9)
    if family == "qwen2_5_vl":
        writer.add_vision_n_wa_pattern(vision["fullatt_block_indexes"][0] + 1)
        writer.add_uint32(gguf.Keys.ClipVision.WINDOW_SIZE, vision["window_size"])
    if family not in types:
        writer.add_vision_spatial_merge_size(vision["spatial_merge_size"])
        writer.add_vision_is_deepstack_layers([layer in tapped for layer in range(layers)])
    patches = tensors.pop("model.visual.patch_embed.proj.weight")
    found = {"v.patch_embd.weight": patches[:, :, 0], "v.patch_embd.weight.1": patches[:, :, 1]}
    if family not in types:
        found |= qwen3_mergers(tensors, tapped)
    else:
        split_projections(tensors)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, layers)
    write(writer, found | renamed(tensors, "model.visual.", "visual.", names))


def qwen3_mergers(tensors: Tensors, tapped: list[int]) -> Tensors:
    """The tensors of the mergers, which it removes from `tensors`."""
    parts = {"norm": "v.post_ln", "linear_fc1": "mm.0", "linear_fc2": "mm.2"}
    names = {f"merger.{part}": name for part, name in parts.items()}
    parts = {"norm": "norm", "linear_fc1": "fc1", "linear_fc2": "fc2"}
    for index, layer in enumerate(tapped):
        own = f"deepstack_merger_list.{index}"
        names |= {f"{own}.{part}": f"v.deepstack.{layer}.{name}" for part, name in parts.items()}
    return {
        f"{name}.{suffix}": tensors.pop(f"model.visual.{own}.{suffix}")
        for own, name in names.items()
        for suffix in ("weight", "bias")
    }


def respelled(name: str) -> str:
    """A name as transformers 5 has it, not as it writes it."""
    if name.startswith("visual."):
        return f"model.{name}"
    return name.replace("model.", "model.language_model.", 1)


def split_projections(tensors: Tensors) -> None:
    for name in [name for name in tensors if ".attn.qkv." in name]:
        for part, rows in zip("qkv", tensors.pop(name).chunk(3), strict=True):
            tensors[name.replace(".qkv.", f".{part}.")] = rows


@pytest.fixture(scope="module", params=first(2, CASES), ids=lambda case: case.family)
def truth(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> VisionReference:
    reference = make_vision_reference(request.param, tmp_path_factory.mktemp("qwen-gguf"))
    folder = reference.folder
    config = json.loads((folder / "config.json").read_text())
    tensors = load_file(folder / "model.safetensors")
    if not any(name.startswith("model.visual.") for name in tensors):
        tensors = {respelled(name): tensor for name, tensor in tensors.items()}
    family = request.param.family
    write_qwen(folder, MODEL, family, config["text_config"]["rope_parameters"]["mrope_section"])
    write_qwen(folder, "wrong.gguf", family, [1, 2, 4])
    write_projector(folder / MMPROJ, family, config["vision_config"], tensors)
    return reference


def source(folder: Path, model: str = MODEL) -> ModelSource:
    return ModelSource(str(folder), "gguf", filenames=(model,), mmproj=MMPROJ)


@pytest.mark.few(1)
@pytest.mark.table("GGUF")
@pytest.mark.values
@pytest.mark.parametrize("images", [2, 1, 0])
def test_prompts(truth: VisionReference, images: int) -> None:
    check_prompt(truth, images)


@pytest.mark.full
def test_videos(truth: VisionReference, tmp_path: Path) -> None:
    """Another test compares what the safetensors files give with transformers."""
    clip = tmp_path / "a.mp4"
    clip.write_bytes(video(3.0))
    own = load_vision_model(truth.folder)
    layout = own.vision.video
    assert layout is not None
    loader = MediaLoader(own.vision.layout, None, layout)
    (media,) = loader.load(
        [{"role": "user", "content": IMAGE_MARK, "images": [read_media(str(tmp_path / "a.mp4"))]}]
    )
    ids = own.ids(f"w1 w2 {media.text} w3 w4 w5", ())
    pair = load_vision_model(truth.folder, source=source(truth.folder))
    assert pair.vision.video is not None
    # Published vocabularies have the tokens elsewhere than the tiny one.
    vision = replace(pair.vision, image_token_id=own.vision.image_token_id, video=layout)
    spec = replace(pair.description.spec, vision=vision)
    pair = replace(pair, description=replace(pair.description, spec=spec))
    logits = []
    for model in (own, pair):
        images = place_images(model.vision, ids, media.images)
        assert len(images) > 1
        logits.append(Conversation(model).feed(ids, images))
    assert difference(*logits) < 1e-4


def test_the_description_is_that_of_the_safetensors_files(truth: VisionReference) -> None:
    own = describe(open_checkpoint(ModelSource(str(truth.folder), "safetensors")), with_vision=True)
    found = describe(open_checkpoint(source(truth.folder)), with_vision=True)
    ropes = [[layer.mixer.rope for layer in each.spec.layers] for each in (own, found)]
    assert ropes[0] == ropes[1]
    assert found.spec.vision is not None
    assert own.spec.vision is not None
    assert found.spec.vision.deep_layers == own.spec.vision.deep_layers


def test_sections_that_do_not_fit_are_refused(truth: VisionReference) -> None:
    with pytest.raises(NotReadable, match=r"\[1, 2, 4\] must be three numbers"):
        describe(open_checkpoint(source(truth.folder, "wrong.gguf")), with_vision=True)


def test_the_projector_of_another_model_is_refused(truth: VisionReference) -> None:
    writer = gguf.GGUFWriter(truth.folder / "other.gguf", "clip")
    writer.add_clip_projector_type("gemma3")
    write(writer, {"v.x": torch.zeros(4)})
    mixed = ModelSource(str(truth.folder), "gguf", filenames=(MODEL,), mmproj="other.gguf")
    with pytest.raises(Unsupported, match="is for gemma3 models, but"):
        describe(open_checkpoint(mixed), with_vision=True)
