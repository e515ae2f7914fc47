"""Pictures as Llama 3.2 Vision takes them: in tiles, with black where there is no picture."""

from __future__ import annotations

import torch
from PIL.Image import Image
from torch import Tensor

from mrs.architecture.vision.towers.mllama_tower import TilesLayout
from mrs.architecture.vision_spec import ImageShape
from mrs.media.pixels import pad, resize, to_numbers, to_rgb


def tiles(layout: TilesLayout, image: Image, shape: ImageShape) -> Tensor:
    """(tiles, 3, edge, edge), tiles row by row; those that the picture does not need are zeros."""
    (rows, columns), edge = shape.grid, layout.edge
    image = to_rgb(image)
    image = resize(image, *layout.scaled(image.height, image.width), layout.resampling)
    canvas = pad(image, rows * edge, columns * edge, top=0, left=0)
    numbers = to_numbers(canvas, layout.scale)
    cut = numbers.view(3, rows, edge, columns, edge).permute(1, 3, 0, 2, 4).flatten(0, 1)
    pixels = torch.zeros(shape.pixels)
    pixels[: rows * columns] = cut
    return pixels
