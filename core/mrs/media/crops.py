"""Pictures as Phi-3 Vision takes them: whole, and in crops of a larger one."""

from __future__ import annotations

from math import ceil

import torch
from PIL.Image import Image, Transpose
from torch import Tensor
from torch.nn.functional import interpolate

from mrs.architecture.vision_spec import ImageShape
from mrs.families.vision.phi3_v import CropsLayout
from mrs.media.pixels import pad, resize, to_numbers, to_rgb


def whole_and_crops(layout: CropsLayout, image: Image, shape: ImageShape) -> Tensor:
    """(1 + crops, 3, edge, edge), crops row by row."""
    image, edge = to_rgb(image), layout.edge
    (height, width), is_turned = layout.scaled(image.height, image.width)
    if is_turned:
        # Pillow rounds rows and columns differently: what was trained on lay on its side.
        image = image.transpose(Transpose.TRANSPOSE)
        height, width = width, height
    image = resize(image, height, width, "bilinear")
    filled = ceil(height / edge) * edge
    image = pad(image, filled, width, top=(filled - height) // 2, left=0, colour="white")
    if is_turned:
        image = image.transpose(Transpose.TRANSPOSE)
    numbers = to_numbers(image, layout.scale)
    whole = interpolate(numbers[None], size=(edge, edge), mode="bicubic")
    rows, columns, _ = shape.grid
    crops = numbers.view(3, rows, edge, columns, edge).permute(1, 3, 0, 2, 4)
    return torch.cat((whole, crops.reshape(-1, 3, edge, edge)))
