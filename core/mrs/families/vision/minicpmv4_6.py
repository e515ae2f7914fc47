"""MiniCPM-V 4.6: Qwen 3.5, and SigLIP features, merged by squares twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, floor, log, sqrt

from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.vision.image_layouts import read_resampling, read_scale
from mrs.architecture.vision.shared_projectors import FoldedMlpProjector
from mrs.architecture.vision.towers.siglip2_tower import (
    Siglip2Tower,
    WindowMerger,
    read_nearest_siglip,
)
from mrs.architecture.vision.towers.siglip_tower import SIGLIP_DEFAULTS, SIGLIP_IMAGES, siglip_names
from mrs.architecture.vision.vision_family import VisionConfigs, VisionFamily
from mrs.architecture.vision_spec import ImageShape, PixelScale, Vision
from mrs.config.config import Config
from mrs.errors import NotReadable
from mrs.layers.mlp.spec import Mlp
from mrs.layers.norm.spec import Norm

TOKEN = "<|image_pad|>"
#: Bounds on slices and on the pixels along an edge, against huge prompts by a broken config.
MOST_SLICES, MOST_EDGE = 256, 2**12
TOWER = "model.vision_tower."
#: Slot -> module name of a `WindowMerger`.
MERGER_NAMES = {
    "merger.mixer.norm": f"{TOWER}vit_merger.layer_norm1",
    "merger.mixer.q": f"{TOWER}vit_merger.self_attn.q_proj",
    "merger.mixer.k": f"{TOWER}vit_merger.self_attn.k_proj",
    "merger.mixer.v": f"{TOWER}vit_merger.self_attn.v_proj",
    "merger.mixer.o": f"{TOWER}vit_merger.self_attn.out_proj",
    "merger.norm": f"{TOWER}vit_merger.pre_norm",
    "merger.up": f"{TOWER}vit_merger.linear_1",
    "merger.down": f"{TOWER}vit_merger.linear_2",
}


@dataclass(frozen=True)
class SlicesLayout:
    """Views keep their aspect ratio; each has about `edge` x `edge` pixels.

    An image with more pixels is also cut into up to `most_slices` slices. `merged` x `merged`
    patches become one row, and edges are multiples of them. A shape's `grid` is (rows, columns) of
    slices, (0, 0) for an image that is not cut; the tower's input are the pixels of each patch.
    With `is_numbered`, the text begins with the image's number, for which it has `{n}`.
    """

    patch_size: int
    merged: int
    edge: int
    most_slices: int
    is_numbered: bool
    scale: PixelScale
    resampling: str
    is_resizable: bool = True

    def shape(self, height: int, width: int) -> ImageShape:
        grid = self._grid(height, width)
        views = [self._fitted(height, width)]
        if grid != (0, 0):
            tall, wide = max(round(height / grid[0]), 1), max(round(width / grid[1]), 1)
            views += [self._fitted(tall, wide)] * (grid[0] * grid[1])
        return self._shape(grid, views)

    def largest(self, edge: int) -> ImageShape:
        """An upper bound, since rounding adds most to the longest images."""
        ratio, views = edge**2 / self.edge**2, [(1, self._most_squares(edge))]
        slices = min(ceil(ratio) + 1, self.most_slices)
        if ratio <= 1 or slices < 2:
            return self._shape((0, 0), views)
        # An image with so many pixels is not as long; and slices are nearer to squares.
        return self._shape((1, slices), views + [(1, self._most_squares(2 * ratio))] * slices)

    def _most_squares(self, ratio: float) -> int:
        """Squares of a view with this aspect ratio, or less."""
        side, stretch = self.edge / self._square, sqrt(ratio)
        return floor(max(side / stretch + 0.5, 1) * max(side * stretch + 0.5, 1))

    @property
    def _square(self) -> int:
        """Pixels along the edge of what becomes one row."""
        return self.patch_size * self.merged

    def _fitted(self, height: int, width: int) -> tuple[int, int]:
        """(rows, columns) of squares of a view that has this size in the image."""
        ratio = width / height
        height = int(self.edge / sqrt(ratio))
        width = int(height * ratio)
        return max(round(height / self._square), 1), max(round(width / self._square), 1)

    def _grid(self, height: int, width: int) -> tuple[int, int]:
        """(rows, columns) of slices whose aspect ratio is closest to a square's."""
        count = min(ceil(height * width / self.edge**2), self.most_slices)
        if count <= 1:
            return 0, 0
        grids = [
            (rows, slices // rows)
            for slices in range(max(count - 1, 2), min(count + 1, self.most_slices) + 1)
            for rows in range(1, slices + 1)
            if slices % rows == 0
        ]
        ratio = log(width / height)
        return min(grids, key=lambda grid: (abs(ratio - log(grid[1] / grid[0])), -grid[0]))

    def _shape(self, grid: tuple[int, int], squares: Sequence[tuple[int, int]]) -> ImageShape:
        counts = [rows * columns for rows, columns in squares]
        patches = sum(counts) * self.merged**2
        columns = grid[1]
        slices = [f"<slice>{TOKEN * count}</slice>" for count in counts[1:]]
        lines = ["".join(slices[at : at + columns]) for at in range(0, len(slices), columns or 1)]
        number = "<image_id>{n}</image_id>" if self.is_numbered else ""
        return ImageShape(
            pixels=(patches, 3 * self.patch_size**2),
            patches=patches,
            rows=sum(counts),
            text=f"{number}<image>{TOKEN * counts[0]}</image>" + "\n".join(lines),
            grid=grid,
            views=tuple((rows * self.merged, wide * self.merged) for rows, wide in squares),
        )


def read_layout(images: Config, patch_size: int, merged: int) -> SlicesLayout:
    images.allow_only("do_resize", True)
    images.allow_only("patch_size", patch_size)
    images.allow_only("downsample_mode", {2: "4x", 4: "16x"}[merged])
    edge, most = images.positive("scale_resolution", 448), images.positive("max_slice_nums", 9)
    if edge > MOST_EDGE or most > MOST_SLICES:
        raise NotReadable(
            f"scale_resolution = {edge} or max_slice_nums = {most} is out of range",
            where=images.where,
        )
    return SlicesLayout(
        patch_size,
        merged,
        edge,
        most if images.flag("slice_mode", True) else 1,
        images.flag("use_image_id", True),
        read_scale(images),
        read_resampling(images),
    )


def read_window_merger(config: Config, tower: Siglip2Tower, after: int) -> WindowMerger:
    """The merger, whose MLP is as wide as those of all patches of a square together."""
    config.allow_only("window_kernel_size", [2, 2], (2, 2))
    if after >= len(tower.layers):
        raise NotReadable(
            f"insert_layer_id = {after} is out of range: the tower has {len(tower.layers)} layers",
            where=config.where,
        )
    layer = tower.layers[0]
    assert isinstance(layer.feed_forward, Mlp)
    mlp = Mlp(4 * layer.feed_forward.intermediate, "gelu_tanh", gated=False, bias=True)
    return WindowMerger(after, replace(layer, feed_forward=mlp))


def read(configs: VisionConfigs, text: ModelSpec) -> Vision:
    model = configs.model
    model.allow_only("merge_kernel_size", [2, 2], (2, 2))
    model.allow_only("merger_times", 1)
    model.require_off("drop_vision_last_layer")
    model.allow_only("downsample_mode", "16x", "4x")
    tower = replace(read_nearest_siglip(configs.tower), nearest="quotient")
    if model.values.get("downsample_mode") != "4x":
        after = model.integer("insert_layer_id", 6)
        merger = read_window_merger(configs.tower, tower, after)
        tower = replace(tower, merger=merger)
    shrunk, width = 1 if tower.merger is None else 2, tower.hidden_size
    norm = Norm(1e-6, "layer", bias=True)
    return Vision(
        tower,
        FoldedMlpProjector(width, 2, "gelu", norm, inner=4 * width, shrunk=shrunk),
        read_layout(configs.images, tower.patch_size, 2 * shrunk),
        placeholder=TOKEN,
        image_token_id=model.integer("image_token_id"),
    )


FAMILY = VisionFamily(
    "minicpmv4_6",
    read,
    names={
        **siglip_names(TOWER),
        **MERGER_NAMES,
        "projector.norm": "model.merger.mlp.0.pre_norm",
        "projector.up": "model.merger.mlp.0.linear_1",
        "projector.down": "model.merger.mlp.0.linear_2",
    },
    text="qwen3_5_text",
    text_start="model.language_model.",
    head="lm_head",
    tower_defaults=SIGLIP_DEFAULTS,
    image_defaults=SIGLIP_IMAGES,
    # Without its merger the tower has it all the same.
    unread=(f"{TOWER}vit_merger.",),
)
