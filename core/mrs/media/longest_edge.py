"""Pictures as Pixtral takes them: their own shape, in whole squares."""

from __future__ import annotations

from PIL.Image import Image
from torch import Tensor

from mrs.architecture.vision_spec import ImageShape
from mrs.families.vision.mistral3 import LongestEdgeLayout
from mrs.media.pixels import resize, to_numbers, to_rgb


def whole_squares(layout: LongestEdgeLayout, image: Image, shape: ImageShape) -> Tensor:
    """(3, height, width)."""
    _, height, width = shape.pixels
    return to_numbers(resize(to_rgb(image), height, width, layout.resampling), layout.scale)
