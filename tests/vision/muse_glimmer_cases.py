"""Muse Glimmer with two towers; the steps for pictures are restated, for they need torchvision."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from transformers.image_transforms import convert_to_rgb
from vision_case import TEXT, WORDS, RestatedProcessor, VisionCase

_SPECIALS = ("<|patch|>", "<|image_start|>", "<|image_end|>")
_TEXT: dict[str, Any] = {
    **TEXT,
    "num_hidden_layers": 4,
    "head_dim": 16,
    "sliding_window": 24,
    "qk_scale_factor": 1.5,
}
_TOWER: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "patch_size": 6,
    "pos_emb_height": 4,
    "pos_emb_width": 4,
    "initializer_range": 0.08,
    "layer_types": ["window_attention", "full_attention", "window_attention"],
}


class _Images:
    """What transformers' image processor makes, one picture at a time."""

    def __init__(self, patch: int, merge: int, frames: int, most: int) -> None:
        self._patch, self._merge, self._frames, self._most = patch, merge, frames, most

    def to_dict(self) -> dict[str, Any]:
        return {
            "patch_size": self._patch,
            "merge_size": self._merge,
            "temporal_patch_size": self._frames,
            "max_image_tokens": self._most,
            "resample": 1,
            "image_mean": [0.5] * 3,
            "image_std": [0.5] * 3,
        }

    def __call__(self, images: Any, return_tensors: str = "pt") -> dict[str, Any]:
        grids = [self._grid(image.height, image.width) for image in images]
        made = [self._patches(image, *grid) for image, grid in zip(images, grids, strict=True)]
        edges = [[1, *(edge * self._merge for edge in grid)] for grid in grids]
        return {"pixel_values": torch.cat(made), "image_grid_thw": torch.tensor(edges)}

    def _grid(self, height: int, width: int) -> tuple[int, int]:
        """(rows, columns) of squares that become a token each."""
        square, most = self._patch * self._merge, self._most
        tall, wide = height / square, width / square
        if tall * wide > most:
            ratio = wide / tall
            tall = (most / ratio) ** 0.5
            wide = tall * ratio
        edges = ([math.floor(edge), math.ceil(edge)] for edge in (tall, wide))
        grids = [(r, c) for r, c in set(itertools.product(*edges)) if r >= 1 and c >= 1]
        small = [grid for grid in grids if grid[0] * grid[1] <= most]
        small = small or [(max(1, round(tall)), max(1, round(wide)))]
        return min(small, key=lambda grid: abs(grid[0] / grid[1] - height / width))

    def _patches(self, image: Image.Image, rows: int, columns: int) -> Tensor:
        """(patches, frames * 3 * patch * patch), row by row."""
        edge, square = self._patch, self._patch * self._merge
        image = Image.fromarray(convert_to_rgb(image, return_numpy=True))
        scaled = image.resize((columns * square, rows * square), Image.Resampling.LANCZOS)
        pixels = torch.from_numpy(np.array(scaled)).permute(2, 0, 1) / 255
        grid = ((pixels - 0.5) / 0.5).unflatten(2, (-1, edge)).unflatten(1, (-1, edge))
        frame = grid.permute(1, 3, 0, 2, 4).flatten(0, 1)  # patches, 3, edge, edge
        return frame[:, None].expand(-1, self._frames, -1, -1, -1).flatten(1)


class _Processor(RestatedProcessor):
    def __init__(self, tokenizer: Any, *layout: int) -> None:
        super().__init__(tokenizer)
        self.image_processor, self._merge = _Images(*layout), layout[1]

    def texts(self, made: dict[str, Any], images: Any) -> list[str]:
        patch, start, end = _SPECIALS
        counts = (int(grid.prod()) // self._merge**2 for grid in made["image_grid_thw"])
        return [start + patch * count + end for count in counts]


def _case(
    name: str, text: dict[str, Any], tower: dict[str, Any], most: int, **model: Any
) -> VisionCase:
    patch, merge = tower["patch_size"], tower.get("merge_size", 2)
    frames = tower.get("patch_temporal", 2)

    def unpack(made: dict[str, Any]) -> Tensor:
        """(3, height, width); all frames are one picture."""
        _, rows, columns = made["image_grid_thw"][0].tolist()
        film = made["pixel_values"].view(rows, columns, frames, 3, patch, patch)
        assert (film == film[:, :, :1]).all()
        still = film[:, :, 0].permute(2, 0, 3, 1, 4)
        return still.reshape(3, rows * patch, columns * patch)

    return VisionCase(
        "muse_glimmer",
        name,
        {
            "image_token_id": WORDS,
            "video_token_id": 127,
            "text_config": text,
            "vision_config": tower,
            "out_hidden_size": tower["hidden_size"] * merge**2,
            "projector_hidden_size": 40,
            **model,
        },
        lambda tokenizer: _Processor(tokenizer, patch, merge, frames, most),
        specials=_SPECIALS,
        placeholder="{}",
        unpack=unpack,
    )


#: What mmproj files do not say is as in published models.
MUSE_PUBLISHED = _case(
    "published",
    _TEXT,
    {**_TOWER, "num_hidden_layers": 5, "layer_types": None},
    4096,
    tie_word_embeddings=False,
)
MUSE_GLIMMER = (
    _case("default", _TEXT, _TOWER, 20, tie_word_embeddings=False),
    _case(
        "odd",
        {**_TEXT, "num_key_value_heads": 1, "attention_bias": True, "rms_norm_eps": 1e-3},
        {
            **_TOWER,
            "hidden_size": 24,
            "num_attention_heads": 2,
            "num_hidden_layers": 5,
            "patch_size": 5,
            "merge_size": 3,
            "patch_temporal": 3,
            "pos_emb_height": 3,
            "pos_emb_width": 3,
            "hidden_act": "gelu_pytorch_tanh",
            "layer_norm_eps": 1e-2,
            "layer_types": None,
            "rope_parameters": {"rope_type": "axial", "rope_theta": 500.0},
        },
        6,
        projector_hidden_act="silu",
        tie_word_embeddings=True,
    ),
)
