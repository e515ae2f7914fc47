"""LFM2-VL: with tiles, and with everything optional switched."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from transformers.image_transforms import convert_to_rgb
from vision_case import TEXT, WORDS, RestatedProcessor, VisionCase

_TOWER: dict[str, Any] = {
    "model_type": "siglip2_vision_model",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "patch_size": 6,
    "num_patches": 25,
    "vision_use_head": False,
    "initializer_range": 0.08,
}
_MODEL: dict[str, Any] = {
    "text_config": {
        "model_type": "lfm2",
        **TEXT,
        "full_attn_idxs": [1],
        "block_auto_adjust_ff_dim": False,
        "tie_word_embeddings": True,
    },
    "vision_config": _TOWER,
    "image_token_id": WORDS,
    "projector_hidden_size": 40,
}
_TOKEN = "<image>"
_SPECIALS = (
    _TOKEN,
    "<|image_start|>",
    "<|image_end|>",
    "<|img_thumbnail|>",
    *(f"<|img_row_{row}_col_{column}|>" for row in range(1, 4) for column in range(1, 4)),
)


@dataclass
class _Images:
    """Transformers' image processor restated on Pillow: it needs torchvision."""

    patch: int
    fold: int
    tile: int
    least_rows: int
    most_rows: int
    least_tiles: int
    most_tiles: int
    has_whole: bool

    def __call__(self, images: Any, return_tensors: str) -> dict[str, Any]:
        views = [view for image in images for view in self.views(image)[0]]
        most = max(len(view) for view, _ in views)
        padded = [torch.nn.functional.pad(view, (0, 0, 0, most - len(view))) for view, _ in views]
        masks = [torch.arange(most) < len(view) for view, _ in views]
        return {
            "pixel_values": torch.stack(padded),
            "pixel_attention_mask": torch.stack(masks).int(),
            "spatial_shapes": torch.tensor([grid for _, grid in views]),
        }

    def views(self, image: Image.Image) -> tuple[list[tuple[Tensor, tuple[int, int]]], str]:
        """The patches and their (rows, columns) of each view, and the text of the image."""
        image = Image.fromarray(convert_to_rgb(image, return_numpy=True))
        rows, columns = self._grid(image)
        size = self._smart_resize(image.height, image.width)
        whole = self._patches(image.resize(size[::-1], Image.Resampling.BILINEAR))
        if (rows, columns) == (1, 1):
            return [whole], f"<|image_start|>{self._tokens(whole[1])}<|image_end|>"
        canvas_size = columns * self.tile, rows * self.tile
        canvas = image.resize(canvas_size, Image.Resampling.BILINEAR)
        views, text = [], ""
        for row in range(rows):
            for column in range(columns):
                left, top = column * self.tile, row * self.tile
                part = canvas.crop((left, top, left + self.tile, top + self.tile))
                views.append(self._patches(part))
                text += f"<|img_row_{row + 1}_col_{column + 1}|>{self._tokens(views[-1][1])}"
        if self.has_whole:
            views.append(whole)
            text += f"<|img_thumbnail|>{self._tokens(whole[1])}"
        return views, f"<|image_start|>{text}<|image_end|>"

    def _tokens(self, grid: tuple[int, int]) -> str:
        return _TOKEN * (math.prod(grid) // self.fold**2)

    def _patches(self, image: Image.Image) -> tuple[Tensor, tuple[int, int]]:
        pixels = (torch.from_numpy(np.array(image)) / 255 - 0.5) / 0.5
        rows, columns = image.height // self.patch, image.width // self.patch
        grid = pixels.view(rows, self.patch, columns, self.patch, 3).transpose(1, 2)
        return grid.reshape(rows * columns, -1), (rows, columns)

    def _grid(self, image: Image.Image) -> tuple[int, int]:
        factor = self.patch * self.fold
        bars = [round(edge / factor) * factor for edge in image.size]
        area = max(self.patch, bars[0]) * max(self.patch, bars[1])
        if self.most_tiles == 1 or area <= self.most_rows * factor**2 * 2.0:
            return 1, 1
        best, best_difference = (1, 1), math.inf
        counts = range(1, self.most_tiles + 1)
        grids = [(wide, tall) for wide in counts for tall in counts]
        for wide, tall in sorted(grids, key=math.prod):
            if not self.least_tiles <= wide * tall <= self.most_tiles:
                continue
            difference = abs(image.width / image.height - wide / tall)
            is_filled = math.prod(image.size) > 0.5 * self.tile**2 * wide * tall
            if difference < best_difference or (difference == best_difference and is_filled):
                best, best_difference = (tall, wide), difference
        return best

    def _smart_resize(self, height: int, width: int) -> tuple[int, int]:
        factor = self.patch * self.fold
        least, most = self.least_rows * factor**2, self.most_rows * factor**2
        bars = [max(factor, round(edge / factor) * factor) for edge in (height, width)]
        if math.prod(bars) > most:
            beta = math.sqrt(height * width / most)
            bars = [
                max(factor, math.floor(edge / beta / factor) * factor) for edge in (height, width)
            ]
        elif math.prod(bars) < least:
            beta = math.sqrt(least / (height * width))
            bars = [math.ceil(edge * beta / factor) * factor for edge in (height, width)]
        return bars[0], bars[1]

    def to_dict(self) -> dict[str, Any]:
        return {
            "encoder_patch_size": self.patch,
            "downsample_factor": self.fold,
            "tile_size": self.tile,
            "min_image_tokens": self.least_rows,
            "max_image_tokens": self.most_rows,
            "min_tiles": self.least_tiles,
            "max_tiles": self.most_tiles,
            "do_image_splitting": self.most_tiles > 1,
            "use_thumbnail": self.has_whole,
        }


class _Processor(RestatedProcessor):
    def __init__(self, tokenizer: Any, images: _Images) -> None:
        super().__init__(tokenizer)
        self.image_processor = images

    def texts(self, made: dict[str, Any], images: Any) -> list[str]:
        return [self.image_processor.views(image)[1] for image in images]


def _unpack(made: dict[str, Any]) -> Tensor:
    """The patches of all views without padding."""
    pairs = zip(made["pixel_values"], made["pixel_attention_mask"], strict=True)
    return torch.cat([view[mask.bool()] for view, mask in pairs])


def _case(name: str, config: dict[str, Any], images: _Images) -> VisionCase:
    return VisionCase(
        "lfm2_vl",
        name,
        {**_MODEL, **config},
        lambda tokenizer: _Processor(tokenizer, images),
        specials=_SPECIALS,
        placeholder="{}",
        unpack=_unpack,
    )


#: What mmproj files do not say is as in published models.
LFM2_VL_PUBLISHED = _case(
    "published",
    {"vision_config": {**_TOWER, "patch_size": 16}},
    _Images(16, 2, 512, 64, 256, 2, 10, True),
)
LFM2_VL = (
    _case("default", {}, _Images(6, 2, 24, 2, 6, 2, 4, True)),
    _case(
        "switched",
        {
            "vision_config": {**_TOWER, "patch_size": 5, "hidden_act": "silu"},
            "downsample_factor": 3,
            "projector_use_layernorm": False,
            "projector_bias": False,
            "projector_hidden_act": "silu",
        },
        _Images(5, 3, 30, 3, 9, 1, 1, True),
    ),
)
