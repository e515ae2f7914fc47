"""Phi-4-multimodal, with transformers' steps for pictures restated: its own need torchvision."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from vision_case import TEXT, WORDS, RestatedProcessor, VisionCase

_TOKEN = "<|image|>"
_TOWER: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "image_size": 24,
    "crop_size": 24,
    "patch_size": 6,
    "image_token_id": WORDS,
}
#: As small as can be: sounds are not read.
_SOUND: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_blocks": 1,
    "num_attention_heads": 2,
    "ext_pw_out_channel": 16,
    "depthwise_separable_out_channel": 16,
    "nemo_conv_channels": 16,
    "audio_token_id": WORDS + 1,
}


def _grid(width: int, height: int, edge: int, most: int) -> tuple[int, int]:
    """(columns, rows) of crops."""
    own = math.ceil(width / edge), math.ceil(height / edge)
    if own[0] * own[1] <= most:
        return own
    ratios = {(i, j) for n in range(1, most + 1) for i in range(1, n + 1) for j in range(1, n + 1)}
    possible = sorted((r for r in ratios if r[0] * r[1] <= most), key=lambda r: r[0] * r[1])
    best, least = (1, 1), math.inf
    for ratio in possible:
        gap = abs(width / height - ratio[0] / ratio[1])
        if gap < least:
            best, least = ratio, gap
        elif gap == least and width * height > 0.5 * edge * edge * ratio[0] * ratio[1]:
            best = ratio
    return best


class _Images:
    """What transformers' image processor makes, one picture at a time."""

    def __init__(self, edge: int, patch: int, most: int) -> None:
        self._edge, self._patch, self._most = edge, patch, most

    def to_dict(self) -> dict[str, Any]:
        size = {"height": self._edge, "width": self._edge}
        return {"size": size, "patch_size": self._patch, "dynamic_hd": self._most}

    def __call__(self, images: Any, return_tensors: str = "pt") -> dict[str, Any]:
        made = [self._crops(image) for image in images]
        most = max(len(pixels) for pixels, _, _ in made)
        return {
            "image_pixel_values": torch.stack([_filled(p, most, 0.0) for p, _, _ in made]),
            "image_attention_mask": torch.stack([_filled(m, most, 1.0) for _, m, _ in made]),
            "image_sizes": torch.tensor([size for _, _, size in made]),
        }

    def _crops(self, image: Image.Image) -> tuple[Tensor, Tensor, tuple[int, int]]:
        """pixels (1 + crops, 3, edge, edge), mask (1 + crops, side, side), padded size."""
        edge, patch = self._edge, self._patch
        canvas = Image.new("RGBA", image.size, (255, 255, 255, 255))
        image = Image.alpha_composite(canvas, image.convert("RGBA")).convert("RGB")
        columns, rows = _grid(image.width, image.height, edge, self._most)
        wide, tall = columns * edge, rows * edge
        if wide / image.width < tall / image.height:
            width, height = wide, max(1, int(image.height * (wide / image.width)))
        else:
            width, height = max(1, int(image.width * (tall / image.height))), tall
        numbers = np.full((tall, wide, 3), 255)
        numbers[:height, :width] = image.resize((width, height), Image.Resampling.BILINEAR)
        tensor = torch.tensor((numbers / 255 - 0.5) / 0.5).permute(2, 0, 1).float()
        side = edge // patch
        mask = torch.ones(rows * side, columns * side)
        if wide - width >= patch:
            mask[:, -((wide - width) // patch) :] = 0
        if tall - height >= patch:
            mask[-((tall - height) // patch) :, :] = 0
        whole = torch.nn.functional.interpolate(tensor[None], size=(edge, edge), mode="bicubic")
        pixels = [whole[0], *_cut(tensor, edge)]
        masks = [torch.ones(side, side), *(view[0] for view in _cut(mask[None], side))]
        return torch.stack(pixels), torch.stack(masks), (tall, wide)


def _cut(table: Tensor, edge: int) -> list[Tensor]:
    return [
        table[:, y : y + edge, x : x + edge]
        for y in range(0, table.shape[1], edge)
        for x in range(0, table.shape[2], edge)
    ]


def _filled(crops: Tensor, most: int, value: float) -> Tensor:
    return torch.cat((crops, torch.full((most - len(crops), *crops.shape[1:]), value)))


class _Processor(RestatedProcessor):
    def __init__(self, tokenizer: Any, edge: int, patch: int, most: int) -> None:
        super().__init__(tokenizer)
        self._edge, self._side = edge, edge // patch
        self.image_processor = _Images(edge, patch, most)

    def texts(self, made: dict[str, Any], images: Any) -> list[str]:
        return [_TOKEN * self._rows(*each) for each in zip(*made.values(), strict=True)]

    def _rows(self, pixels: Tensor, mask: Tensor, size: Tensor) -> int:
        """What the model makes of one picture: a line ends with a row of its own."""
        rows, columns = (int(each) // self._edge for each in size)
        crops = mask[1 : 1 + rows * columns, ::2, ::2]
        lines = sum(int(crops[row * columns][:, 0].sum()) for row in range(rows))
        half = self._side // 2
        return int(crops.sum()) + lines + 1 + half * (half + 1)


def _unpack(made: dict[str, Any]) -> Tensor:
    pixels: Tensor = made["image_pixel_values"][0]
    return pixels


def _case(
    name: str, text: dict[str, Any], tower: dict[str, Any], edge: int, patch: int, most: int
) -> VisionCase:
    return VisionCase(
        "phi4_multimodal",
        name,
        {**TEXT, **text, "vision_config": {**_TOWER, **tower}, "audio_config": _SOUND},
        lambda tokenizer: _Processor(tokenizer, edge, patch, most),
        specials=(_TOKEN,),
        placeholder="{}",
        unpack=_unpack,
        # The weights of the tower are drawn with deviation 1; transformers in bf16 differs as much.
        half_tolerance=0.15,
    )


PHI4_MULTIMODAL = (
    _case("default", {}, {}, 24, 6, 9),
    _case(
        "switched",
        {"tie_word_embeddings": True, "partial_rotary_factor": 0.5, "num_key_value_heads": 4},
        {
            "image_size": 40,
            "crop_size": 40,
            "patch_size": 4,
            "feature_layer": -1,
            "hidden_act": "gelu",
            "layer_norm_eps": 1e-4,
        },
        40,
        4,
        3,
    ),
)
