"""Pictures as LLaVA-NeXT takes them: whole, and in tiles."""

from __future__ import annotations

import torch
from PIL.Image import Image
from torch import Tensor

from mrs.architecture.vision_spec import ImageShape
from mrs.families.vision.llava_next import AnyResolutionLayout
from mrs.media.pixels import resize, to_numbers, to_rgb


def whole_and_tiles(layout: AnyResolutionLayout, image: Image, shape: ImageShape) -> Tensor:
    """(1 + tiles, 3, edge, edge), tiles row by row."""
    image, edge = to_rgb(image), layout.edge
    tall, wide = layout.resolution(image.height, image.width)
    scaled = resize(image, *layout.scaled(image.height, image.width), layout.resampling)
    left, above = (wide - scaled.width) // 2, (tall - scaled.height) // 2
    canvas = scaled.crop((-left, -above, wide - left, tall - above))
    views = [resize(image, edge, edge, layout.resampling)]
    for top in range(0, tall, edge):
        for start in range(0, wide, edge):
            views.append(canvas.crop((start, top, start + edge, top + edge)))
    return torch.stack([to_numbers(view, layout.scale) for view in views])
