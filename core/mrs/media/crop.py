"""Pictures as CLIP takes them: the middle of one scaled to a fixed size."""

from __future__ import annotations

from PIL.Image import Image
from torch import Tensor

from mrs.architecture.vision.image_layouts import CropLayout
from mrs.architecture.vision_spec import ImageShape
from mrs.media.pixels import crop_middle, resize, to_numbers, to_rgb


def crop(layout: CropLayout, image: Image, shape: ImageShape) -> Tensor:
    """(1, 3, crop, crop)."""
    image = to_rgb(image)
    short, long = sorted(image.size)
    edges = layout.edge, int(layout.edge * long / short)
    width, height = edges if image.width <= image.height else edges[::-1]
    image = resize(image, height, width, layout.resampling)
    return to_numbers(crop_middle(image, layout.crop, layout.crop), layout.scale)[None]
