"""Pictures as Idefics 3 takes them: in tiles, and whole."""

from __future__ import annotations

import torch
from PIL.Image import Image
from torch import Tensor

from mrs.architecture.vision_spec import ImageShape
from mrs.families.vision.idefics3 import SplitLayout
from mrs.media.pixels import resize, to_numbers, to_rgb


def tiles_and_whole(layout: SplitLayout, image: Image, shape: ImageShape) -> Tensor:
    """(tiles + 1, 3, tile, tile), tiles row by row."""
    size = image.height, image.width
    image = resize(to_rgb(image), *layout.scaled(*size), layout.resampling)
    if layout.is_split:
        image = resize(image, *layout.fitted(*size), layout.resampling)
    edge, (rows, columns) = layout.tile, shape.grid
    corners = [(row * edge, column * edge) for row in range(rows) for column in range(columns)]
    views = [image.crop((left, top, left + edge, top + edge)) for top, left in corners]
    views.append(resize(image, edge, edge, layout.resampling))
    return torch.stack([to_numbers(view, layout.scale) for view in views])
