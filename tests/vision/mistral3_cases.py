"""Mistral 3 with Pixtral's tower."""

from __future__ import annotations

import json
from typing import Any

from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil
from vision_case import TEXT, WORDS, VisionCase

_PIXTRAL: dict[str, Any] = {
    "model_type": "pixtral",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 60,
    "patch_size": 5,
    "initializer_range": 0.08,
}
_MISTRAL3: dict[str, Any] = {
    "text_config": {"model_type": "mistral", **TEXT, "head_dim": 20, "sliding_window": None},
    "vision_config": _PIXTRAL,
    "image_token_index": WORDS,
    "tie_word_embeddings": False,
}
_SPECIALS = ("[IMG]", "[IMG_BREAK]", "[IMG_END]")


class _Processor:
    """Transformers' image processor, and its processor's texts restated: that needs torchvision."""

    def __init__(self, tokenizer: Any, edge: int, merged: int) -> None:
        self._tokenizer, self._square = tokenizer, 5 * merged
        square = {"height": self._square, "width": self._square}
        self.image_processor = PixtralImageProcessorPil(
            size={"longest_edge": edge}, patch_size=square
        )

    def __call__(self, text: list[str], images: Any = None, **settings: Any) -> dict[str, Any]:
        prompt, inputs = text[0], {}
        if images:
            inputs = dict(self.image_processor(images=images, return_tensors="pt"))
            for height, width in inputs["image_sizes"].tolist():
                lines = [["[IMG]"] * (width // self._square) for _ in range(height // self._square)]
                tokens = [token for line in lines for token in [*line, "[IMG_BREAK]"]]
                prompt = prompt.replace("{}", "".join([*tokens[:-1], "[IMG_END]"]), 1)
        return {**self._tokenizer([prompt], return_tensors="pt"), **inputs}

    def save_pretrained(self, folder: Any) -> None:
        self._tokenizer.save_pretrained(folder)
        settings = {"image_processor": self.image_processor.to_dict()}
        (folder / "processor_config.json").write_text(json.dumps(settings))


MISTRAL3 = (
    VisionCase(
        "mistral3",
        "default",
        _MISTRAL3,
        lambda tokenizer: _Processor(tokenizer, 60, 2),
        specials=_SPECIALS,
        placeholder="{}",
    ),
    VisionCase(
        "mistral3",
        "switched",
        {
            **_MISTRAL3,
            "text_config": {**_MISTRAL3["text_config"], "tie_word_embeddings": True},
            "tie_word_embeddings": True,
            "vision_config": {**_PIXTRAL, "num_hidden_layers": 3, "hidden_act": "silu"},
            "vision_feature_layer": -2,
            "spatial_merge_size": 3,
            "multimodal_projector_bias": True,
            "projector_hidden_act": "silu",
        },
        lambda tokenizer: _Processor(tokenizer, 45, 3),
        specials=_SPECIALS,
        placeholder="{}",
        sizes=((90, 20), (31, 77), (200, 100)),
    ),
)
