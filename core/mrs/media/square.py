"""Pictures as Gemma 3 takes them: stretched to a square, and long ones in stretches, too."""

from __future__ import annotations

from math import ceil

import torch
from PIL.Image import Image
from torch import Tensor

from mrs.architecture.vision_spec import ImageShape
from mrs.families.vision.gemma3 import SquareLayout
from mrs.media.pixels import resize, to_numbers, to_rgb


def squares(layout: SquareLayout, image: Image, shape: ImageShape) -> Tensor:
    """(1 + stretches, 3, edge, edge), the whole picture first."""
    image, views = to_rgb(image), [to_rgb(image)]
    down, across = shape.grid
    if down and across:
        tall, wide = ceil(image.height / down), ceil(image.width / across)
        for top in range(0, image.height, tall):
            for left in range(0, image.width, wide):
                end = min(left + wide, image.width), min(top + tall, image.height)
                views.append(image.crop((left, top, *end)))
    sized = [resize(view, layout.edge, layout.edge, layout.resampling) for view in views]
    return torch.stack([to_numbers(view, layout.scale) for view in sized])
