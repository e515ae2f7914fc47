"""How Gemma 4 lays out images: of nearly one area, with any aspect ratio."""

from __future__ import annotations

from dataclasses import dataclass
from math import floor, sqrt

from mrs.architecture.config import Config
from mrs.architecture.vision.image_layouts import read_resampling, squarest_grid
from mrs.architecture.vision.layouts.square_grid import MOST_ROWS, SquareGridLayout
from mrs.architecture.vision.vision_family import VisionConfigs
from mrs.architecture.vision_spec import ImageShape, PixelScale
from mrs.errors import NotReadable

BEGIN, TOKEN, END = "<|image>", "<|image|>", "<image|>"


@dataclass(frozen=True)
class AreaLayout(SquareGridLayout):
    """Images are scaled to the largest area that has at most `most_rows` squares."""

    marks = BEGIN, TOKEN, END
    is_resizable: bool = False

    def shape(self, height: int, width: int) -> ImageShape:
        pixels = self.most_rows * self.square**2
        factor = sqrt(pixels / (height * width))
        rows = floor(factor * height / self.square)
        columns = floor(factor * width / self.square)
        if rows == 0:
            rows, columns = 1, min(width // height, self.most_rows)
        elif columns == 0:
            rows, columns = min(height // width, self.most_rows), 1
        return self.of_grid(rows, columns)

    def largest(self, edge: int) -> ImageShape:
        return self.of_grid(*squarest_grid(self.most_rows))


def read_area(
    configs: VisionConfigs, mean: tuple[float, ...], std: tuple[float, ...]
) -> AreaLayout:
    """The layout for a tower whose input is (pixels - mean) / std."""
    images, tower = configs.images, configs.tower
    patch_size, pool = tower.positive("patch_size"), tower.positive("pooling_kernel_size")
    images.allow_only("do_resize", True)
    images.allow_only("do_rescale", True)
    images.allow_only("patch_size", patch_size)
    images.allow_only("pooling_kernel_size", pool)
    most = images.positive("max_soft_tokens")
    if most > MOST_ROWS:
        raise NotReadable(f"max_soft_tokens = {most} is out of range", where=images.where)
    scale = PixelScale(mean, std, images.number("rescale_factor", 1 / 255))
    return AreaLayout(patch_size * pool, pool, most, scale, read_resampling(images))


def read_normalization(images: Config) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """(mean, std) of the image processor."""
    if not images.flag("do_normalize", False):
        return (0.0,) * 3, (1.0,) * 3
    return images.numbers("image_mean", 3), images.numbers("image_std", 3, above=0)


def require_positions(needed: int, positions: int, where: str) -> None:
    """Raises NotReadable if the longest image has more patches along an edge than positions."""
    if needed > positions:
        raise NotReadable(
            f"the tower has {positions} positions, but images need {needed}", where=where
        )
