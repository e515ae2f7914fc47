"""Pictures at nearly their own size."""

from __future__ import annotations

from PIL.Image import Image
from torch import Tensor

from mrs.architecture.vision.dynamic_layout import DynamicLayout
from mrs.architecture.vision_spec import ImageShape
from mrs.media.pixels import resize, to_numbers, to_rgb


def fit(layout: DynamicLayout, image: Image, shape: ImageShape) -> Tensor:
    """(3, height, width), multiples of the layout's factor."""
    _, height, width = shape.pixels
    return to_numbers(resize(to_rgb(image), height, width, layout.resampling), layout.scale)
