"""Colour modes of images: reduce a file's mode to L, RGB or RGBA, and that to RGB.

Large images are converted a strip of rows at a time, so that intermediate copies stay small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image

_STRIP_PIXELS = 2**20


def to_plain_mode(image: Image) -> Image:
    """The image in mode RGBA if it has transparency, L if it has no colour, otherwise RGB."""
    if image.mode.startswith("I"):  # 16-bit grey
        return _convert_in_strips(image, "L", _upper_byte)
    if "transparency" in image.info or image.mode in ("LA", "PA"):
        return image.convert("RGBA")
    if image.mode == "1":
        return image.convert("L")
    return image if image.mode in ("L", "RGB", "RGBA") else image.convert("RGB")


def to_rgb(image: Image) -> Image:
    """The image in mode RGB; transparent pixels are blended with white."""
    if "A" in image.getbands():
        return _convert_in_strips(image, "RGB", _on_white)
    return image if image.mode == "RGB" else image.convert("RGB")


def strips(image: Image) -> Iterator[tuple[int, Image]]:
    """Strips of about a million pixels from the top, each with its first row's index."""
    rows = max(1, _STRIP_PIXELS // image.width)
    for top in range(0, image.height, rows):
        bottom = min(top + rows, image.height)
        yield top, image.crop((0, top, image.width, bottom))


def _convert_in_strips(image: Image, mode: str, convert: Callable[[Image], Image]) -> Image:
    """The image in another mode; `convert` maps each pixel independently."""
    from PIL.Image import new

    result = new(mode, image.size)
    for top, strip in strips(image):
        result.paste(convert(strip), (0, top))
    return result


def _upper_byte(image: Image) -> Image:
    return image.convert("I").point(lambda value: value * (1 / 256)).convert("L")


def _on_white(image: Image) -> Image:
    from PIL.Image import alpha_composite, new

    return alpha_composite(new("RGBA", image.size, "white"), image.convert("RGBA")).convert("RGB")
