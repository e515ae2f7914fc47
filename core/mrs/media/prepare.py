"""From a picture to the numbers that a tower takes: one case a layout.

Every layout does what transformers' processors on Pillow do, to the rounding of a byte.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import singledispatch

from PIL.Image import Image
from torch import Tensor

from mrs.families.vision.layouts import CropLayout
from mrs.families.vision.spec import ImageLayout, ImageShape
from mrs.media.pixels import crop_middle, resize, to_numbers, to_rgb


@dataclass(frozen=True)
class PreparedImage:
    """What a tower takes of one picture: `pixels` of shape `shape.pixels`, float32.

    `digest` is a number that no other picture has.
    """

    pixels: Tensor
    shape: ImageShape
    digest: int


def prepare(layout: ImageLayout, image: Image, digest: int) -> PreparedImage:
    """A decoded picture as `layout` says."""
    shape = layout.shape(image.height, image.width)
    pixels = to_pixels(layout, image, shape)
    assert tuple(pixels.shape) == shape.pixels
    return PreparedImage(pixels, shape, digest)


@singledispatch
def to_pixels(layout: ImageLayout, image: Image, shape: ImageShape) -> Tensor:
    """The pixels of a picture, of shape `shape.pixels`; one case a kind of layout."""
    raise TypeError(f"no pixels are known for {type(layout).__name__}")


@to_pixels.register
def _(layout: CropLayout, image: Image, shape: ImageShape) -> Tensor:
    image = to_rgb(image)
    short, long = sorted(image.size)
    edges = layout.edge, int(layout.edge * long / short)
    width, height = edges if image.width <= image.height else edges[::-1]
    image = resize(image, height, width, layout.resampling)
    return to_numbers(crop_middle(image, layout.crop, layout.crop), layout.scale)[None]
