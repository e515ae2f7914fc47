"""Gemma 4: images of any aspect ratio and nearly one area, whose patches are averaged."""

from __future__ import annotations

from dataclasses import dataclass
from math import floor, isqrt, sqrt

from mrs.architecture.config import Config
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.readers.layer_reader import read_norm
from mrs.architecture.vision.image_layouts import read_resampling
from mrs.architecture.vision.towers.gemma4_tower import (
    GEMMA4_TOWER_DEFAULTS,
    ScaledPoolProjector,
    gemma4_names,
    read_gemma4_tower,
)
from mrs.architecture.vision.vision_family import VisionConfigs, VisionFamily
from mrs.architecture.vision_spec import ImageShape, PixelScale, Vision
from mrs.errors import NotReadable

TOWER = "model.vision_tower."
BEGIN, TOKEN, END = "<|image>", "<|image|>", "<image|>"
#: Bound on the rows of an image; a broken config must not make a huge prompt.
MOST_ROWS = 1 << 16


@dataclass(frozen=True)
class AreaLayout:
    """Images are scaled to the largest area of at most `most_rows` squares of `square` pixels.

    A square has `pool` x `pool` patches and becomes one row. A shape's `grid` is (rows, columns)
    of squares.
    """

    square: int
    pool: int
    most_rows: int
    scale: PixelScale
    resampling: str
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
        return self._of_grid(rows, columns)

    def largest(self, edge: int) -> ImageShape:
        most = self.most_rows
        side = next(side for side in range(isqrt(most), 0, -1) if most % side == 0)
        return self._of_grid(side, most // side)

    def _of_grid(self, rows: int, columns: int) -> ImageShape:
        return ImageShape(
            pixels=(3, rows * self.square, columns * self.square),
            patches=rows * columns * self.pool**2,
            rows=rows * columns,
            text=BEGIN + TOKEN * (rows * columns) + END,
            grid=(rows, columns),
        )


def read(configs: VisionConfigs, text: ModelSpec) -> Vision:
    model, config = configs.model, configs.tower
    tower = read_gemma4_tower(config)
    mean, std = read_normalization(configs.images)
    # The tower's input is 2 x - 1, where x is what the image processor makes of pixels.
    middle = tuple(m + s / 2 for m, s in zip(mean, std, strict=True))
    layout = read_area(configs, middle, tuple(s / 2 for s in std))
    require_positions(layout.most_rows * layout.pool, tower.positions, config.where)
    return Vision(
        tower,
        ScaledPoolProjector(
            tower.hidden_size,
            read_norm(config),
            layout.pool,
            tower.hidden_size**0.5,
            config.flag("standardize", False),
        ),
        layout,
        placeholder=TOKEN,
        image_token_id=model.integer("image_token_id", 258_880),
        is_bidirectional=attends_both_ways(model, default=None),
    )


def attends_both_ways(model: Config, default: str | None) -> bool:
    """Whether the tokens of an image attend to each other in both directions."""
    text = model.mapping("text_config")
    return bool(text.get("use_bidirectional_attention", default) == "vision")


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


FAMILY = VisionFamily(
    "gemma4",
    read,
    names={
        **gemma4_names(TOWER),
        "standard.bias": f"{TOWER}std_bias",
        "standard.scale": f"{TOWER}std_scale",
        "projector": "model.embed_vision.embedding_projection",
    },
    text="gemma4_text",
    text_start="model.language_model.",
    head="lm_head",
    tower_defaults=GEMMA4_TOWER_DEFAULTS,
    image_defaults={"max_soft_tokens": 280, "resample": 3},
    ignored=("model.audio_tower.", "model.embed_audio."),
)
