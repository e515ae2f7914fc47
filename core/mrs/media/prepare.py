"""From a picture to the numbers that a tower takes: one entry a layout.

Every layout does what transformers' processors on Pillow do, to the rounding of a byte.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from PIL.Image import Image
from torch import Tensor

from mrs.architecture.vision.dynamic_layout import DynamicLayout
from mrs.architecture.vision.image_layouts import CropLayout
from mrs.architecture.vision.towers.mllama_tower import TilesLayout
from mrs.architecture.vision_spec import ImageLayout, ImageShape
from mrs.families.vision.gemma3 import SquareLayout
from mrs.families.vision.idefics3 import SplitLayout
from mrs.families.vision.llava_next import AnyResolutionLayout
from mrs.families.vision.mistral3 import LongestEdgeLayout
from mrs.families.vision.phi3_v import CropsLayout
from mrs.media.any_resolution import whole_and_tiles
from mrs.media.crop import crop
from mrs.media.crops import whole_and_crops
from mrs.media.dynamic import fit
from mrs.media.longest_edge import whole_squares
from mrs.media.split import tiles_and_whole
from mrs.media.square import squares
from mrs.media.tiles import tiles


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


def to_pixels(layout: ImageLayout, image: Image, shape: ImageShape) -> Tensor:
    """The pixels of a picture, of shape `shape.pixels`."""
    return _LAYOUTS[type(layout)](layout, image, shape)


_LAYOUTS: dict[type, Callable[[Any, Image, ImageShape], Tensor]] = {
    CropLayout: crop,
    DynamicLayout: fit,
    SplitLayout: tiles_and_whole,
    SquareLayout: squares,
    AnyResolutionLayout: whole_and_tiles,
    CropsLayout: whole_and_crops,
    LongestEdgeLayout: whole_squares,
    TilesLayout: tiles,
}
