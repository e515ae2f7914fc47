"""How pictures are cut and scaled before a tower sees them. Sizes only; no pixel is touched here."""

from __future__ import annotations

from dataclasses import dataclass
from functools import singledispatch

from mrs.architecture.config import Config
from mrs.architecture.vision_spec import ImageLayout, ImageShape, PixelScale
from mrs.errors import NotReadable, UsageError

#: Pillow's numbers of its filters, as preprocessor_config.json has them.
RESAMPLING = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}

#: Pixels that no processor scales an edge of a picture to.
_MOST_EDGE = 2**14

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
CLIP_IMAGES = {
    "image_mean": CLIP_MEAN,
    "image_std": CLIP_STD,
    "rescale_factor": 1 / 255,
    "resample": 3,
}


def read_scale(images: Config) -> PixelScale:
    """The numbers by which bytes are scaled."""
    for step in ("do_rescale", "do_normalize"):
        images.refuse(step, True)
    mean, std = images.numbers("image_mean", 3), images.numbers("image_std", 3, above=0)
    return PixelScale(mean, std, images.number("rescale_factor", 1 / 255))


def read_resampling(images: Config) -> str:
    return RESAMPLING.get(images.whole("resample", 3), "bicubic")


def read_size(images: Config, key: str, *sides: str) -> tuple[int, ...]:
    """The numbers under `sides` of a size, which may also be one number for all of them."""
    value = images.values.get(key)
    if isinstance(value, int):
        found = (images.positive(key),) * len(sides)
    else:
        size = Config(images.mapping(key), images.where)
        found = tuple(size.positive(side) for side in sides)
    if max(found) > _MOST_EDGE:
        raise NotReadable(f"{key} = {value!r} is more than any image", where=images.where)
    return found


def limited(layout: ImageLayout, edge: int) -> ImageLayout:
    """The layout for pictures of which no edge is longer than `edge`.

    UsageError where the model scales every picture to one size.
    """
    if not layout.is_resizable:
        raise UsageError(
            "--max-edge changes nothing: this model scales every image to one size",
            hint="leave it out",
        )
    return scaled_within(layout, edge)


@singledispatch
def scaled_within(layout: ImageLayout, edge: int) -> ImageLayout:
    """The same layout, or where it scales smaller pictures up, one that does not go beyond `edge`;
    a case each."""
    return layout


@dataclass(frozen=True)
class CropLayout:
    """CLIP's: the shorter edge is scaled to `edge`, and the middle of `crop` by `crop` is kept.

    Every picture takes as many rows as there are patches in the crop.
    """

    edge: int
    crop: int
    patch_size: int
    scale: PixelScale
    resampling: str
    token: str
    is_resizable: bool = False
    extra_rows: int = 0

    def shape(self, height: int, width: int) -> ImageShape:
        side = self.crop // self.patch_size
        rows = side * side + self.extra_rows
        pixels = (1, 3, self.crop, self.crop)
        return ImageShape(pixels, side * side + 1, rows, self.token * rows, (side, side))

    def largest(self, edge: int) -> ImageShape:
        return self.shape(edge, edge)
