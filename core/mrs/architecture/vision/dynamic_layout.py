"""Dynamic resolution: a picture keeps its size and its shape, nearly (arXiv 2409.12191)."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor, isqrt, sqrt

from mrs.architecture.config import Config
from mrs.architecture.vision.image_layouts import read_resampling, read_scale
from mrs.architecture.vision_spec import ImageShape, PixelScale
from mrs.errors import NotReadable, UsageError

#: Pictures that are longer than wide by more than this are not taken.
MOST_ELONGATED = 200
#: More rows than pictures are scaled up to: a broken number must not make a long prompt.
MOST_LEAST_ROWS = 1 << 16


@dataclass(frozen=True)
class DynamicLayout:
    """Both sides are scaled to multiples of `factor`, and `min_pixels` to `max_pixels` are in them.

    `patch_size` is that of the tower's patches, as many of which as lie in a square of `factor`
    pixels become one row. In a shape's `grid` are the rows and columns of these.
    """

    patch_size: int
    factor: int
    min_pixels: int
    max_pixels: int
    scale: PixelScale
    resampling: str
    token: str
    is_resizable: bool = True

    def shape(self, height: int, width: int) -> ImageShape:
        """UsageError for a picture that is too elongated."""
        if max(height, width) > MOST_ELONGATED * min(height, width):
            raise UsageError(
                f"an image of {width} x {height} pixels is too narrow for this model",
                hint=f"no side may be more than {MOST_ELONGATED} times the other one",
            )
        return self._of_grid(*self._grid(height, width))

    def largest(self, edge: int) -> ImageShape:
        """An upper bound: rounding up makes small and very elongated pictures take more."""
        least, most = self.min_pixels / self.factor**2, self.max_pixels / self.factor**2
        elongated = sqrt(min(edge, MOST_ELONGATED))
        rows = max(round(edge / self.factor), 1) ** 2
        if rows > most:
            rows = floor(max(most, sqrt(most) * elongated, 1))
        rows = max(rows, floor(least + sqrt(least) * (elongated + 1 / elongated) + 1))
        side = next(side for side in range(isqrt(rows), 0, -1) if rows % side == 0)
        return self._of_grid(side, rows // side)

    def _grid(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of squares; either side is rounded, and where it must be, scaled."""
        factor, pixels = self.factor, height * width
        rows, columns = round(height / factor), round(width / factor)
        if rows * columns * factor**2 > self.max_pixels:
            shrink = sqrt(pixels / self.max_pixels)
            rows = max(1, floor(height / shrink / factor))
            columns = max(1, floor(width / shrink / factor))
        elif rows * columns * factor**2 < self.min_pixels:
            grow = sqrt(self.min_pixels / pixels)
            rows, columns = ceil(height * grow / factor), ceil(width * grow / factor)
        return rows, columns

    def _of_grid(self, rows: int, columns: int) -> ImageShape:
        return ImageShape(
            pixels=(3, rows * self.factor, columns * self.factor),
            patches=rows * columns * (self.factor // self.patch_size) ** 2,
            rows=rows * columns,
            text=self.token * (rows * columns),
            grid=(rows, columns),
        )


def read_dynamic(images: Config, patch_size: int, merge: int, token: str) -> DynamicLayout:
    """What preprocessor_config.json says, in either of its spellings, for a tower's patches."""
    images.refuse("do_resize", True)
    images.refuse("patch_size", patch_size)
    images.refuse("merge_size", merge)
    size = Config(images.mapping("size"), images.where)
    least = images.positive("min_pixels", size.values.get("shortest_edge"))
    most = images.positive("max_pixels", size.values.get("longest_edge"))
    if least > MOST_LEAST_ROWS * (patch_size * merge) ** 2:
        raise NotReadable(f"min_pixels = {least} is more than any image", where=images.where)
    return DynamicLayout(
        patch_size=patch_size,
        factor=patch_size * merge,
        min_pixels=least,
        max_pixels=most,
        scale=read_scale(images),
        resampling=read_resampling(images),
        token=token,
    )
