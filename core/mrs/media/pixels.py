"""The steps that image processors share: resize, crop, pad, split, normalize."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from PIL.Image import Image, Resampling, new
from torch import Tensor

from mrs.architecture.vision_spec import PixelScale

#: (left, top, right, bottom) in pixels.
Box = tuple[int, int, int, int]

#: Of an image that is neither a file's nor a model's: 64 MiB, as Pillow has four bytes a pixel.
_MOST_PIXELS = 2**24


def resize(image: Image, height: int, width: int, resampling: str) -> Image:
    """The image at another size; `resampling` is the name of one of Pillow's filters.

    Pillow has an image of the new width and the old height in between. One of more than
    _MOST_PIXELS is avoided: the result is computed in strips of columns.
    """
    if image.size == (width, height):
        return image
    columns = max(1, _MOST_PIXELS // image.height)
    if columns >= width:
        return image.resize((width, height), Resampling[resampling.upper()])
    scaled = new(image.mode, (width, height))
    for left in range(0, width, columns):
        box = left, 0, min(left + columns, width), height
        scaled.paste(_resize_part(image, height, width, box, resampling), box)
    return scaled


def resize_center(image: Image, height: int, width: int, edge: int, resampling: str) -> Image:
    """The `edge` x `edge` pixels in the centre of the image at another size.

    A smaller image has a black border. If that size has more than _MOST_PIXELS, only the centre
    is computed.
    """
    left, top = (width - edge) // 2, (height - edge) // 2
    box = left, top, left + edge, top + edge
    if height * width <= _MOST_PIXELS:
        return resize(image, height, width, resampling).crop(box)
    inside = max(left, 0), max(top, 0), min(left + edge, width), min(top + edge, height)
    part = _resize_part(image, height, width, inside, resampling)
    return pad(part, edge, edge, top=inside[1] - top, left=inside[0] - left)


def _resize_part(image: Image, height: int, width: int, box: Box, resampling: str) -> Image:
    """A part of `image` at another size; what is around it counts at its border as in the whole.

    It equals that of the whole up to rounding: Pillow may scale columns before rows, or after.
    """
    left, top, right, bottom = box
    across, down = image.width / width, image.height / height
    source = (
        left * across,
        top * down,
        min(right * across, image.width),  # rounding must not lead outside
        min(bottom * down, image.height),
    )
    return image.resize((right - left, bottom - top), Resampling[resampling.upper()], source)


def pad(
    image: Image, height: int, width: int, *, top: int = 0, left: int = 0, colour: str = "black"
) -> Image:
    """A canvas of one colour with the image `top` rows down and `left` columns in."""
    canvas = new(image.mode, (width, height), colour)
    canvas.paste(image, (left, top))
    return canvas


def grid_boxes(image: Image, height: int, width: int) -> Iterator[Box]:
    """The image's parts of that size, row by row.

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
