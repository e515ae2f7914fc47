"""Convert large images a strip of rows at a time, so that intermediate copies stay small."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image

_STRIP_PIXELS = 2**20


def strips(image: Image) -> Iterator[tuple[int, Image]]:
    """The picture's strips from the top, each with the row at which it begins."""
    rows = max(1, _STRIP_PIXELS // image.width)
    for top in range(0, image.height, rows):
        bottom = min(top + rows, image.height)
        yield top, image.crop((0, top, image.width, bottom))


def changed(image: Image, mode: str, change: Callable[[Image], Image]) -> Image:
    """The picture in another mode, where `change` makes each pixel of that pixel alone."""
    from PIL.Image import new

    result = new(mode, image.size)
    for top, strip in strips(image):
        result.paste(change(strip), (0, top))
    return result
