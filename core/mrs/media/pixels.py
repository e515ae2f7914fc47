"""The steps that image processors share: resize, crop, pad, split, normalize."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from PIL.Image import Image, Resampling, new
from torch import Tensor

from mrs.architecture.vision_spec import PixelScale


def resize(image: Image, height: int, width: int, resampling: str) -> Image:
    """The image at another size; `resampling` is the name of one of Pillow's filters."""
    if image.size == (width, height):
        return image
    return image.resize((width, height), Resampling[resampling.upper()])


def center_crop(image: Image, height: int, width: int) -> Image:
    """The centre of an image; a smaller image gets a black border."""
    top, left = (image.height - height) // 2, (image.width - width) // 2
    return image.crop((left, top, left + width, top + height))


def pad(
    image: Image, height: int, width: int, *, top: int = 0, left: int = 0, colour: str = "black"
) -> Image:
    """A canvas of one colour with the image `top` rows down and `left` columns in."""
    canvas = new(image.mode, (width, height), colour)
    canvas.paste(image, (left, top))
    return canvas


def grid_boxes(image: Image, height: int, width: int) -> Iterator[tuple[int, int, int, int]]:
    """(left, top, right, bottom) of the image's parts of that size, row by row.

    The parts at the right and the bottom end with the image.
    """
    for top in range(0, image.height, height):
        for left in range(0, image.width, width):
            yield left, top, min(left + width, image.width), min(top + height, image.height)


def split_grid(pixels: Tensor, edge: int) -> Tensor:
    """(3, rows * edge, columns * edge) as (rows * columns, 3, edge, edge), row by row."""
    channels, height, width = pixels.shape
    grid = pixels.view(channels, height // edge, edge, width // edge, edge)
    return grid.permute(1, 3, 0, 2, 4).flatten(0, 1)


def split_patches(pixels: Tensor, size: int, *, channels_first: bool = False) -> Tensor:
    """(3, height, width) as (patches, size * size * 3), row by row; channels come last or first."""
    channels, height, width = pixels.shape
    grid = pixels.view(channels, height // size, size, width // size, size)
    order = (1, 3, 0, 2, 4) if channels_first else (1, 3, 2, 4, 0)
    return grid.permute(order).flatten(2).flatten(0, 1)


def normalize(image: Image, scale: PixelScale) -> Tensor:
    """(3, height, width) float32 of an RGB image: (byte * factor - mean) / std."""
    values = torch.from_numpy(np.array(image, dtype=np.float32)).mul_(scale.factor)
    values = values.sub_(torch.tensor(scale.mean)).div_(torch.tensor(scale.std))
    return values.permute(2, 0, 1).contiguous()
