"""A decoded image, and the limits within which it is decoded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mrs.architecture.vision_spec import MAX_ASPECT_RATIO

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True)
class ImageLimits:
    """Limits for one image, checked before it is decoded: pixels, and how often its height may
    exceed its width, or the other way round."""

    pixels: int = 64 * 2**20
    aspect: int = MAX_ASPECT_RATIO


@dataclass(frozen=True)
class DecodedImage:
    """`image` is the first frame, upright, in mode L, RGB or RGBA.

    `digest` is the first 63 bits of the SHA-256 of mode, size and pixels.
    """

    image: Image
    digest: int


DEFAULT_LIMITS = ImageLimits()
