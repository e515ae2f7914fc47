"""LLaVA-NeXT (1.6): the whole image, and tiles of it at a higher resolution."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil

from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.vision.image_layouts import read_resampling, read_scale
from mrs.architecture.vision.shared_projectors import MlpProjector
from mrs.architecture.vision.towers.clip_tower import read_clip, read_layers
from mrs.architecture.vision.vision_family import VisionConfigs
from mrs.architecture.vision_slots import vision_slots
from mrs.architecture.vision_spec import ImageShape, PixelScale, Vision
from mrs.config.config import Config
from mrs.families.vision.llava import (
    GGUF,
    RESOLUTIONS,
    TOKEN,
    llava_family,
    llava_vision,
    read_crop,
    read_mlp,
)
from mrs.layers.slots import Slot


@dataclass(frozen=True)
class TilesProjector:
    """An MLP; then the tiles are joined, with a learned vector at the end of each row."""

    mlp: MlpProjector


@vision_slots.register
def _(projector: TilesProjector, hidden_size: int) -> Iterator[Slot]:
    yield from vision_slots(projector.mlp, hidden_size)
    yield Slot("newline", (hidden_size,), "vector", suffix="")


@dataclass(frozen=True)
class AnyResolutionLayout:
    """The whole image in one tile, then tiles of it at the best of some `resolutions`.

    Tiles have `edge` x `edge` pixels; `resolutions` are (height, width) in multiples of `edge`.
    A shape's `grid` is (rows of tiles, columns of tiles, patches along a tile's edge, padding rows
    above, padding columns on the left). There is as much padding below and on the right; features
    of padding are dropped. All padding is counted in patches.
    """

    edge: int
    patch_size: int
    resolutions: tuple[tuple[int, int], ...]
    scale: PixelScale
    resampling: str
    token: str
    is_resizable: bool = False

    @property
    def side(self) -> int:
        return self.edge // self.patch_size

    def shape(self, height: int, width: int) -> ImageShape:
        tall, wide = self.resolution(height, width)
        rows, columns = tall // self.edge, wide // self.edge
        above, left = self._padding(height, width, rows * self.side, columns * self.side)
        image_rows = rows * self.side - 2 * above
        image_columns = columns * self.side - 2 * left
        features = self.side**2 + image_rows * (image_columns + 1)
        return ImageShape(
            pixels=(1 + rows * columns, 3, self.edge, self.edge),
            patches=(1 + rows * columns) * (self.side**2 + 1),
            rows=features,
            text=self.token * features,
            grid=(rows, columns, self.side, above, left),
        )

    def largest(self, edge: int) -> ImageShape:
        """An image with the aspect ratio of a resolution needs no padding."""
        return max((self.shape(*size) for size in self.resolutions), key=lambda s: s.rows)

    def resolution(self, height: int, width: int) -> tuple[int, int]:
        """The resolution that keeps most of the image's pixels; of several, the smallest."""

        def kept(size: tuple[int, int]) -> int:
            scale = min(size[1] / width, size[0] / height)
            return min(int(width * scale) * int(height * scale), width * height)

        return max(self.resolutions, key=lambda size: (kept(size), kept(size) - size[0] * size[1]))

    def scaled(self, height: int, width: int) -> tuple[int, int]:
        """(height, width) of the scaled image inside its resolution."""
        tall, wide = self.resolution(height, width)
        if wide / width < tall / height:
            return min(ceil(height * (wide / width)), tall), wide
        return tall, min(ceil(width * (tall / height)), wide)

    def _padding(self, height: int, width: int, rows: int, columns: int) -> tuple[int, int]:
        """(rows above, columns on the left) of the image in rows x columns of patches."""
        if width / height > columns / rows:
            return (rows - int(round(height * (columns / width), 7))) // 2, 0
        return 0, (columns - int(round(width * (rows / height), 7))) // 2


def read_resolutions(config: Config) -> tuple[tuple[int, int], ...]:
    """The pairs (height, width) in `image_grid_pinpoints`."""
    pairs = [
        Config({"height": pair[0], "width": pair[1]}, config.where)
        for pair in config.sequence(RESOLUTIONS)
    ]
    return tuple((pair.positive("height"), pair.positive("width")) for pair in pairs)


def read(configs: VisionConfigs, text: ModelSpec) -> Vision:
    model, images = configs.model, configs.images
    model.allow_only("vision_feature_select_strategy", "default")
    tower = read_clip(configs.tower, read_layers(model))
    layout = AnyResolutionLayout(
        edge=read_crop(configs, tower),
        patch_size=tower.patches.size,
        resolutions=read_resolutions(images if images.has(RESOLUTIONS) else model),
        scale=read_scale(images),
        resampling=read_resampling(images),
        token=TOKEN,
    )
    return llava_vision(configs, tower, TilesProjector(read_mlp(model, tower)), layout)


FAMILY = llava_family(
    "llava_next",
    read,
    {"newline": "image_newline"},
    defaults={
        "image_grid_pinpoints": [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]
    },
    gguf=replace(GGUF, is_of=lambda clip: RESOLUTIONS in clip),
)
