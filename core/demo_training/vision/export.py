"""Write the trained model as a folder that LLaVA's readers know."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor

from demo_training.text.export import llama_config
from demo_training.text.vocabulary import END, END_OF_TEXT, START

from .network import Llava, Shape
from .pixels import DEVIATION, MEAN
from .vocabulary import CHAT_TEMPLATE, IMAGE, IMAGE_ID, SPECIALS

_BOS_ID, _EOS_ID = SPECIALS.index(END_OF_TEXT), SPECIALS.index(END)
_IDS = {"bos_token_id": _BOS_ID, "eos_token_id": _EOS_ID, "pad_token_id": _BOS_ID}


def write_folder(
    folder: Path, shape: Shape, state: Mapping[str, Tensor], tokenizer: Tokenizer
) -> None:
    """The weights in bf16, and the files of configuration, tokenizer and image processor."""
    folder.mkdir(parents=True, exist_ok=True)
    contents = {
        "config.json": _config(shape),
        "generation_config.json": {**_IDS, "do_sample": False},
        "tokenizer_config.json": _tokenizer_config(shape),
        "preprocessor_config.json": _preprocessor_config(shape),
        "processor_config.json": _processor_config(shape),
    }
    for name, content in contents.items():
        text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    weights = {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in state.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def read_folder(folder: Path, shape: Shape) -> tuple[Llava, Tokenizer]:
    """The network with the weights that `write_folder` wrote, and its tokenizer."""
    model = Llava(shape, IMAGE_ID)
    model.load_state_dict(load_file(folder / "model.safetensors"))
    return model.eval(), Tokenizer.from_file(str(folder / "tokenizer.json"))


def _config(shape: Shape) -> dict[str, object]:
    return {
        "architectures": ["LlavaForConditionalGeneration"],
        "model_type": "llava",
        "image_token_index": IMAGE_ID,
        "image_seq_length": shape.vision.patches,
        "multimodal_projector_bias": True,
        "projector_hidden_act": "gelu",
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "vision_feature_layer": -1,
        "vision_feature_select_strategy": "default",
        **_IDS,
        "text_config": {**llama_config(shape.text, is_head_tied=False), **_IDS},
        "vision_config": {
            "model_type": "clip_vision_model",
            "attention_dropout": 0.0,
            "hidden_act": "quick_gelu",
            "projection_dim": shape.vision.hidden_size,
            "torch_dtype": "bfloat16",
            **shape.vision.as_config(),
        },
    }


def _tokenizer_config(shape: Shape) -> dict[str, object]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "processor_class": "LlavaProcessor",
        "add_bos_token": False,
        "bos_token": END_OF_TEXT,
        "eos_token": END,
        "pad_token": END_OF_TEXT,
        "additional_special_tokens": [START, END, IMAGE],
        "clean_up_tokenization_spaces": False,
        "model_max_length": shape.text.max_position_embeddings,
    }


def _preprocessor_config(shape: Shape) -> dict[str, object]:
    side = shape.vision.image_size
    return {
        "image_processor_type": "CLIPImageProcessor",
        "processor_class": "LlavaProcessor",
        "do_convert_rgb": True,
        "do_resize": True,
        "size": {"shortest_edge": side},
        "resample": 3,  # bicubic
        "do_center_crop": True,
        "crop_size": {"height": side, "width": side},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(MEAN),
        "image_std": list(DEVIATION),
    }


def _processor_config(shape: Shape) -> dict[str, object]:
    return {
        "processor_class": "LlavaProcessor",
        "image_token": IMAGE,
        "num_additional_image_tokens": 1,  # the class token, which the strategy leaves out
        "patch_size": shape.vision.patch_size,
        "vision_feature_select_strategy": "default",
    }
