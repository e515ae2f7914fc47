"""Llama 4 with two towers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from transformers.image_transforms import convert_to_rgb
from vision_case import TEXT, WORDS, RestatedProcessor, VisionCase

_TOWER: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 24,
    "patch_size": 6,
    "vision_output_dim": 40,
    "projector_input_dim": 40,
    "projector_output_dim": 40,
    "initializer_range": 0.08,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
}
_MODEL: dict[str, Any] = {
    "text_config": {
        **TEXT,
        "head_dim": 16,
        "intermediate_size_mlp": 96,
        "num_local_experts": 4,
        "interleave_moe_layer_step": 2,
        "attention_chunk_size": 64,
    },
    "vision_config": _TOWER,
    "image_token_index": WORDS,
    "tie_word_embeddings": False,
}
_SPECIALS = (
    "<|patch|>",
    "<|image|>",
    "<|image_start|>",
    "<|image_end|>",
    "<|tile_x_separator|>",
    "<|tile_y_separator|>",
)


class _Processor(RestatedProcessor):
    def __init__(self, tokenizer: Any, edge: int, rows: int, most: int, fills: bool) -> None:
        super().__init__(tokenizer)
        self._edge, self._rows, self._most, self._fills = edge, rows, most, fills

    def image_processor(self, images: Any, return_tensors: str) -> dict[str, Any]:
        return {"pixel_values": torch.cat([self._tiles(image)[0] for image in images])}

    def texts(self, made: dict[str, Any], images: Any) -> list[str]:
        return [self._text(*self._tiles(image)[1]) for image in images]

    def _text(self, rows: int, columns: int) -> str:
        tile, text = "<|patch|>" * self._rows, "<|image_start|>"
        if rows * columns > 1:
            for _ in range(rows):
                text += "<|tile_x_separator|>".join([tile] * columns) + "<|tile_y_separator|>"
        return f"{text}<|image|>{tile}<|image_end|>"

    def _tiles(self, image: Image.Image) -> tuple[Tensor, tuple[int, int]]:
        image = Image.fromarray(convert_to_rgb(image, return_numpy=True))
        edge, (width, height) = self._edge, image.size
        rows, columns = self._grid(height, width)
        tall, wide = rows * edge, columns * edge
        if not self._fills:
            tall, wide = min(max(height, edge), tall), min(max(width, edge), wide)
        if wide / width < tall / height:
            size = wide, max(min(math.floor(height * (wide / width)), tall), 1)
        else:
            size = max(min(math.floor(width * (tall / height)), wide), 1), tall
        canvas = Image.new("RGB", (columns * edge, rows * edge))
        canvas.paste(image.resize(size, Image.Resampling.BILINEAR))
        tiles = [
            canvas.crop((column * edge, row * edge, (column + 1) * edge, (row + 1) * edge))
            for row in range(rows)
            for column in range(columns)
        ]
        if len(tiles) > 1:
            tiles.append(image.resize((edge, edge), Image.Resampling.BILINEAR))
        pixels = torch.stack([torch.from_numpy(np.array(tile)) for tile in tiles])
        return (pixels.permute(0, 3, 1, 2) / 255 - 0.5) / 0.5, (rows, columns)

    def _grid(self, height: int, width: int) -> tuple[int, int]:
        """The canvas that enlarges least (or most), or shrinks least, of those the smallest."""
        grids = [(r, c) for r in range(1, 9) for c in range(1, 9) if r * c <= self._most]
        scales = {g: min(g[0] * self._edge / height, g[1] * self._edge / width) for g in grids}
        larger = [scale for scale in scales.values() if scale >= 1]
        best = (max if self._fills else min)(larger) if larger else max(scales.values())
        return min((g for g in grids if scales[g] == best), key=math.prod)

    def settings(self) -> dict[str, Any]:
        return {
            "size": {"height": self._edge, "width": self._edge},
            "max_patches": self._most,
            "resize_to_max_canvas": self._fills,
            "resample": 2,
        }


def _case(name: str, tower: dict[str, Any], *layout: Any, **text: Any) -> VisionCase:
    return VisionCase(
        "llama4",
        name,
        {**_MODEL, "text_config": {**_MODEL["text_config"], **text}, "vision_config": tower},
        lambda tokenizer: _Processor(tokenizer, *layout),
        specials=_SPECIALS,
        placeholder="{}",
    )


#: What mmproj files do not say is as in published models.
LLAMA4_PUBLISHED = _case(
    "published",
    {**_TOWER, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
    *(24, 4, 16, False),
    attention_chunk_size=8192,
)
LLAMA4 = (
    _case("default", _TOWER, 24, 4, 6, False),
    _case(
        "switched",
        {
            **_TOWER,
            "image_size": 40,
            "patch_size": 5,
            "pixel_shuffle_ratio": 0.25,
            "intermediate_size": 512,
        },
        40,
        4,
        4,
        True,
    ),
)
