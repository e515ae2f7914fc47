"""Image processors: from a decoded image to the pixels that a vision tower takes.

One function per family of models, all with the same arguments. Each one computes what the
family's image processor on Pillow in transformers computes, up to one step of a byte.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import Any

import torch
from PIL.Image import Image, Transpose
from torch import Tensor
from torch.nn.functional import interpolate

from mrs.architecture.vision.dynamic_layout import DynamicLayout
from mrs.architecture.vision_spec import ImageLayout, ImageShape, PixelScale
from mrs.families.vision.gemma3 import SquareLayout
from mrs.families.vision.gemma4 import AreaLayout
from mrs.families.vision.idefics2 import QuartersLayout
from mrs.families.vision.idefics3 import SplitLayout
from mrs.families.vision.internvl import CanvasLayout
from mrs.families.vision.lfm2_vl import WholeAndTilesLayout
from mrs.families.vision.llama4 import PaddedTilesLayout
from mrs.families.vision.llava import CropLayout
from mrs.families.vision.llava_next import AnyResolutionLayout
from mrs.families.vision.minicpmv4_6 import SlicesLayout
from mrs.families.vision.mistral3 import LongestEdgeLayout
from mrs.families.vision.mllama import TilesLayout
from mrs.families.vision.muse_glimmer import NearestGridLayout
from mrs.families.vision.phi3_v import CropsLayout
from mrs.families.vision.phi4_multimodal import PaddedCropsLayout
from mrs.media.colour_modes import to_rgb
from mrs.media.pixels import (
    grid_boxes,
    normalize,
    pad,
    resize,
    resize_center,
    split_grid,
    split_patches,
)


@dataclass(frozen=True)
class PreparedImage:
    """One image as a vision tower takes it: `pixels` of shape `shape.pixels`, float32.

    `digest` identifies the image's content: equal images have equal digests.
    """

    pixels: Tensor
    shape: ImageShape
    digest: int


@dataclass(frozen=True)
class PreparedFrames:
    """Frames of a video as a further image, whose pixels are (frames, 3, height, width).

    `frames` have the size of `shape`. `digest` identifies their content and their time.
    """

    frames: tuple[Image, ...]
    scale: PixelScale
    shape: ImageShape
    digest: int

    @property
    def pixels(self) -> Tensor:
        """Made anew each time: in float32, a video has four times as many bytes."""
        return torch.stack([normalize(frame, self.scale) for frame in self.frames])


#: An image as a vision tower takes it: of a file of its own, or of a video.
Prepared = PreparedImage | PreparedFrames


def prepare_image(layout: ImageLayout, image: Image, digest: int) -> PreparedImage:
    """Run the image processor that belongs to `layout`."""
    shape = layout.shape(image.height, image.width)
    pixels = _PROCESSORS[type(layout)](layout, to_rgb(image), shape)
    assert tuple(pixels.shape) == shape.pixels
    return PreparedImage(pixels, shape, digest)


def preprocess_clip(layout: CropLayout, image: Image, shape: ImageShape) -> Tensor:
    """LLaVA 1.5: the centre of the scaled image. Returns (1, 3, crop, crop)."""
    short, long = sorted(image.size)
    edges = layout.edge, int(layout.edge * long / short)
    width, height = edges if image.width <= image.height else edges[::-1]
    center = resize_center(image, height, width, layout.crop, layout.resampling)
    return normalize(center, layout.scale)[None]


def preprocess_llava_next(layout: AnyResolutionLayout, image: Image, shape: ImageShape) -> Tensor:
    """LLaVA-NeXT: the whole image, then tiles row by row. Returns (1 + tiles, 3, edge, edge)."""
    edge = layout.edge
    height, width = layout.resolution(image.height, image.width)
    scaled = resize(image, *layout.scaled(image.height, image.width), layout.resampling)
    left, top = (width - scaled.width) // 2, (height - scaled.height) // 2
    canvas = scaled.crop((-left, -top, width - left, height - top))
    views = [resize(image, edge, edge, layout.resampling)]
    views += [canvas.crop(box) for box in grid_boxes(canvas, edge, edge)]
    return torch.stack([normalize(view, layout.scale) for view in views])


def preprocess_idefics3(layout: SplitLayout, image: Image, shape: ImageShape) -> Tensor:
    """Idefics 3, SmolVLM: tiles row by row, then the whole. Returns (tiles + 1, 3, tile, tile)."""
    size, edge, (rows, columns) = (image.height, image.width), layout.tile, shape.grid
    image = resize(image, *layout.scaled(*size), layout.resampling)
    if layout.is_split:
        image = resize(image, *layout.fitted(*size), layout.resampling)
    corners = [(row * edge, column * edge) for row in range(rows) for column in range(columns)]
    views = [image.crop((left, top, left + edge, top + edge)) for top, left in corners]
    views.append(resize(image, edge, edge, layout.resampling))
    return torch.stack([normalize(view, layout.scale) for view in views])


def preprocess_idefics2(layout: QuartersLayout, image: Image, shape: ImageShape) -> Tensor:
    """Idefics 2: the quarters of the image, if it is split, and the whole. Returns the patches of
    all views row by row, (patches, patch * patch * 3)."""
    boxes, patches = layout.boxes(image.height, image.width), layout.patch_size
    views = []
    for (top, left, height, width), (rows, columns) in zip(boxes, shape.views, strict=True):
        part = image.crop((left, top, left + width, top + height))
        pixels = normalize(
            resize(part, *layout.scaled(height, width), layout.resampling), layout.scale
        )
        whole = pixels[:, : rows * patches, : columns * patches]
        views.append(split_patches(whole.contiguous(), patches))
    return torch.cat(views)


def preprocess_minicpm(layout: SlicesLayout, image: Image, shape: ImageShape) -> Tensor:
    """MiniCPM-V: the whole image, then slices row by row, if there are any. Returns the patches of
    all views row by row, (patches, patch * patch * 3)."""
    patch, (rows, columns) = layout.patch_size, shape.grid
    height, width = (edge * patch for edge in shape.views[0])
    views = [resize(image, height, width, layout.resampling)]
    if rows:
        height, width = (edge * patch for edge in shape.views[1])
        canvas = resize(image, rows * height, columns * width, layout.resampling)
        views += [canvas.crop(box) for box in grid_boxes(canvas, height, width)]
    return torch.cat([split_patches(normalize(view, layout.scale), patch) for view in views])


def preprocess_gemma3(layout: SquareLayout, image: Image, shape: ImageShape) -> Tensor:
    """Gemma 3: the image stretched to a square, then the parts of a long image, if any ("pan and
    scan"). Returns (1 + parts, 3, edge, edge)."""
    edge, (rows, columns) = layout.edge, shape.grid
    views = [resize(image, edge, edge, layout.resampling)]
    if rows and columns:
        boxes = grid_boxes(image, ceil(image.height / rows), ceil(image.width / columns))
        views += [resize(image.crop(box), edge, edge, layout.resampling) for box in boxes]
    return torch.stack([normalize(view, layout.scale) for view in views])


def preprocess_phi3_vision(layout: CropsLayout, image: Image, shape: ImageShape) -> Tensor:
    """Phi-3 Vision: the whole image, then crops row by row. Returns (1 + crops, 3, edge, edge)."""
    edge = layout.edge
    (height, width), is_transposed = layout.scaled(image.height, image.width)
    if is_transposed:
        # Pillow rounds rows and columns differently; the model was trained on transposed images.
        image = image.transpose(Transpose.TRANSPOSE)
        height, width = width, height
    image = resize(image, height, width, "bilinear")
    padded = ceil(height / edge) * edge
    image = pad(image, padded, width, top=(padded - height) // 2, colour="white")
    if is_transposed:
        image = image.transpose(Transpose.TRANSPOSE)
    return _whole_and_crops(layout, image)


def preprocess_phi4(layout: PaddedCropsLayout, image: Image, shape: ImageShape) -> Tensor:
    """Phi-4-multimodal: the whole padded image, then crops row by row. Returns (1 + crops, 3, edge,
    edge)."""
    (rows, columns), edge = shape.grid[:2], layout.edge
    image = resize(image, *layout.scaled(image.height, image.width), "bilinear")
    return _whole_and_crops(layout, pad(image, rows * edge, columns * edge, colour="white"))


def _whole_and_crops(layout: CropsLayout | PaddedCropsLayout, image: Image) -> Tensor:
    """An image scaled to one crop, then its crops."""
    pixels = normalize(image, layout.scale)
    whole = interpolate(pixels[None], size=(layout.edge,) * 2, mode="bicubic")
    return torch.cat((whole, split_grid(pixels, layout.edge)))


def preprocess_internvl(layout: CanvasLayout, image: Image, shape: ImageShape) -> Tensor:
    """InternVL: tiles row by row, then the whole image. Returns (tiles + 1, 3, edge, edge)."""
    (rows, columns), edge = shape.grid, layout.tile.edge
    canvas = resize(image, rows * edge, columns * edge, layout.resampling)
    return _tiles_and_whole(layout, canvas, image)


def preprocess_llama4(layout: PaddedTilesLayout, image: Image, shape: ImageShape) -> Tensor:
    """Llama 4: tiles row by row, padded with black, then the whole image. Returns (tiles + 1, 3,
    edge, edge)."""
    (rows, columns), edge = shape.grid, layout.tile.edge
    scaled = resize(image, *layout.scaled(image.height, image.width), layout.resampling)
    return _tiles_and_whole(layout, pad(scaled, rows * edge, columns * edge), image)


def _tiles_and_whole(
    layout: CanvasLayout | PaddedTilesLayout, canvas: Image, image: Image
) -> Tensor:
    """The tiles of the canvas and, if there are several, the image in one more."""
    edge = layout.tile.edge
    tiles = split_grid(normalize(canvas, layout.scale), edge)
    if len(tiles) == 1:
        return tiles
    whole = resize(image, edge, edge, layout.resampling)
    return torch.cat((tiles, normalize(whole, layout.scale)[None]))


def preprocess_lfm2_vl(layout: WholeAndTilesLayout, image: Image, shape: ImageShape) -> Tensor:
    """LFM2-VL: tiles row by row, then the whole image, if there is one. Returns the patches of all
    views row by row, (patches, patch * patch * 3)."""
    (rows, columns), tile, patch = shape.grid, layout.tile, layout.whole.patch_size
    views: list[Tensor] = []
    if rows:
        canvas = resize(image, rows * tile, columns * tile, layout.resampling)
        views += split_grid(normalize(canvas, layout.scale), tile).unbind()
    if len(views) < len(shape.views):
        height, width = (edge * patch for edge in shape.views[-1])
        whole = resize(image, height, width, layout.resampling)
        views.append(normalize(whole, layout.scale))
    return torch.cat([split_patches(view, patch) for view in views])


def preprocess_mllama(layout: TilesLayout, image: Image, shape: ImageShape) -> Tensor:
    """Llama 3.2 Vision: tiles row by row, padded with black; tiles beyond the image are zeros.
    Returns (tiles, 3, edge, edge)."""
    (rows, columns), edge = shape.grid, layout.edge
    image = resize(image, *layout.scaled(image.height, image.width), layout.resampling)
    image = pad(image, rows * edge, columns * edge)
    pixels = torch.zeros(shape.pixels)
    pixels[: rows * columns] = split_grid(normalize(image, layout.scale), edge)
    return pixels


def preprocess_native_resolution(
    layout: DynamicLayout | LongestEdgeLayout | AreaLayout | NearestGridLayout,
    image: Image,
    shape: ImageShape,
) -> Tensor:
    """Qwen-VL, Pixtral, Gemma 4, Muse Glimmer: nearly the image's own size. Returns (3, height,
    width)."""
    _, height, width = shape.pixels
    return normalize(resize(image, height, width, layout.resampling), layout.scale)


_PROCESSORS: dict[type, Callable[[Any, Image, ImageShape], Tensor]] = {
    CropLayout: preprocess_clip,
    AnyResolutionLayout: preprocess_llava_next,
    SplitLayout: preprocess_idefics3,
    QuartersLayout: preprocess_idefics2,
    SlicesLayout: preprocess_minicpm,
    CanvasLayout: preprocess_internvl,
    PaddedTilesLayout: preprocess_llama4,
    SquareLayout: preprocess_gemma3,
    CropsLayout: preprocess_phi3_vision,
    PaddedCropsLayout: preprocess_phi4,
    TilesLayout: preprocess_mllama,
    WholeAndTilesLayout: preprocess_lfm2_vl,
    DynamicLayout: preprocess_native_resolution,
    LongestEdgeLayout: preprocess_native_resolution,
    AreaLayout: preprocess_native_resolution,
    NearestGridLayout: preprocess_native_resolution,
}
