"""Vision models that llama.cpp's own converter writes give what transformers computes.

    python tests/outside/llama_cpp_converter.py LLAMA_CPP [FAMILY ...]

LLAMA_CPP is the folder with convert_hf_to_gguf.py. Tiny random models are converted to float32, the
language model and its projector; logits for prompts with 0, 1 and 2 images must be those of
transformers. Ends with exit code 0 if all are.
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

TESTS = Path(__file__).parent.parent
sys.path[:0] = [sys.argv[1], str(TESTS), str(TESTS / "vision")]

import conversion
import gguf
from gemma4_image_cases import GEMMA4_PUBLISHED
from gguf_tensors import MMPROJ, MODEL, prompt_difference
from idefics3_cases import IDEFICS3
from lfm2_vl_cases import LFM2_VL_PUBLISHED
from llama4_image_cases import LLAMA4_PUBLISHED
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from vision_case import VisionCase
from vision_reference import VisionReference, make_vision_reference

#: What files of a projector do not say is as in published models.
CASES = (*GEMMA4_PUBLISHED, LFM2_VL_PUBLISHED, LLAMA4_PUBLISHED, IDEFICS3[0])
#: Of images: what published files say, and those of the tiny models do not.
IMAGES = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
AUDIO = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
#: The same of the language models.
TEXTS: dict[str, dict[str, Any]] = {
    "gemma4_unified": {"moe_intermediate_size": None},
    "idefics3": {"architectures": ["LlamaForCausalLM"]},
    "lfm2_vl": {"architectures": ["Lfm2ForCausalLM"]},
}
#: In which models differ from the tiny ones, so that the converter takes them.
MODELS: dict[str, dict[str, Any]] = {
    "gemma4": {"audio_config": AUDIO},
    "gemma4_unified": {"audio_config": {"audio_embed_dim": 20}},
}
TOWERS = {family: {"num_hidden_layers": 3} for family in ("lfm2_vl", "llama4")}
#: Starts of tensor names that published files have otherwise than transformers writes them.
SPELLINGS = {
    "lfm2_vl": {"model.vision_tower.": "model.vision_tower.vision_model."},
}
LIMIT = 1e-4


def convert(folder: Path, kind: conversion.ModelType, name: str) -> None:
    """Write `folder/name`; a language model has no tokenizer in it."""
    config = conversion.ModelBase.load_hparams(folder, False)
    arch = conversion.get_model_architecture(config, kind)
    converter = conversion.get_model_class(arch, mmproj=kind == conversion.ModelType.MMPROJ)
    if kind == conversion.ModelType.TEXT:
        converter = type(converter.__name__, (converter,), _without_tokenizer(converter))
    converter(folder, gguf.LlamaFileType.ALL_F32, folder / name).write()


def _without_tokenizer(converter: Any) -> dict[str, Any]:
    def set_vocab(model: Any) -> None:
        model._set_vocab_none()
        model.gguf_writer.add_vocab_size(model.hparams["vocab_size"])

    return {"model_arch": converter.model_arch, "set_vocab": set_vocab}


def make(case: VisionCase, folder: Path) -> VisionReference:
    config = {**case.config, **MODELS.get(case.family, {})}
    # The converter knows the maps of a projector by the numbers of layers.
    tower = {**config["vision_config"], **TOWERS.get(case.family, {})}
    case = replace(case, config={**config, "vision_config": tower})
    reference = make_vision_reference(case, folder)
    path = folder / "preprocessor_config.json"
    path.write_text(json.dumps({**IMAGES, **json.loads(path.read_text())}))
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["text_config"] = {**TEXTS.get(case.family, {}), **config["text_config"]}
    path.write_text(json.dumps(config))
    _respell(folder / "model.safetensors", SPELLINGS.get(case.family, {}))
    _fill_vocabulary(folder / "tokenizer.json", config["text_config"]["vocab_size"])
    return reference


def _respell(path: Path, spellings: dict[str, str]) -> None:
    tensors = load_file(path)
    for old, new in spellings.items():
        tensors = {name.replace(old, new): tensor for name, tensor in tensors.items()}
    save_file(tensors, path, {"format": "pt"})


def _fill_vocabulary(path: Path, size: int) -> None:
    """The converter drops rows of embeddings that the tokenizer has no token for."""
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.add_tokens([f"unused{id_}" for id_ in range(tokenizer.get_vocab_size(), size)])
    tokenizer.save(str(path))


def check(case: VisionCase) -> tuple[str, bool]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        reference = make(case, folder)
        with torch.inference_mode():
            convert(folder, conversion.ModelType.TEXT, MODEL)
            convert(folder, conversion.ModelType.MMPROJ, MMPROJ)
        found = [prompt_difference(reference, images) for images in range(3)]
    return ", ".join(f"{each:.1e}" for each in found), max(found) < LIMIT


def main() -> None:
    logging.disable()
    wanted = sys.argv[2:]
    is_right = True
    for case in CASES:
        if not wanted or case.family in wanted or case.id in wanted:
            words, passed = check(case)
            print(f"{case.id:30} {words}", flush=True)
            is_right &= passed
    sys.exit(not is_right)


if __name__ == "__main__":
    main()
