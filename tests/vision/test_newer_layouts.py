"""How the newer vision families scale and cut images: as transformers does, and never more."""

from __future__ import annotations

from math import prod

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.gemma4.image_processing_pil_gemma4 import get_aspect_ratio_preserving_size
from transformers.models.glm4v.image_processing_pil_glm4v import smart_resize
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import get_optimal_tiled_canvas
from transformers.models.minicpmv4_6.image_processing_pil_minicpmv4_6 import (
    MiniCPMV4_6ImageProcessorPil,
)
from transformers.models.paddleocr_vl import image_processing_pil_paddleocr_vl as paddleocr
from transformers.vision_utils import get_vision_nearest_position_ids

from mrs.architecture.vision.dynamic_layout import (
    DynamicLayout,
)
from mrs.architecture.vision.image_layouts import SquareTile, best_grid
from mrs.architecture.vision.vision_family import VisionConfigs
from mrs.architecture.vision_spec import PixelScale
from mrs.config.config import Config
from mrs.errors import NotReadable
from mrs.families.vision import llama4
from mrs.families.vision.gemma4 import AreaLayout
from mrs.families.vision.idefics2 import PERCEIVER_DEFAULTS, read_perceiver
from mrs.families.vision.idefics2 import read_layout as read_quarters
from mrs.families.vision.internvl import CanvasLayout
from mrs.families.vision.lfm2_vl import WholeAndTilesLayout
from mrs.families.vision.minicpmv4_6 import read_layout as read_slices
from mrs.layers.mlp.spec import Mlp
from mrs.layers.norm.spec import Norm
from mrs.model.vision.siglip import nearest_position_ids

SCALE = PixelScale((0.5,) * 3, (0.5,) * 3)
EDGES = st.integers(1, 5000)


@settings(deadline=None)
@given(EDGES, EDGES, st.sampled_from([70, 280, 1120]))
def test_areas(height: int, width: int, most: int) -> None:
    """Gemma 4's images."""
    layout = AreaLayout(48, 3, most, SCALE, "bicubic")
    shape = layout.shape(height, width)
    assert shape.pixels[1:] == get_aspect_ratio_preserving_size(height, width, 16, most * 9, 3)
    assert shape.rows * 9 == shape.patches == prod(shape.pixels[1:]) // 256
    assert shape.rows <= layout.largest(max(height, width)).rows == most


@settings(deadline=None)
@given(EDGES, EDGES, st.sampled_from([(2, 1, 15_000), (3, 40, 60)]))
def test_repeated_frames(height: int, width: int, limits: tuple[int, int, int]) -> None:
    """GLM-V's images, of which small ones are first scaled up."""
    frames, least, most = limits
    bounds = {"min_pixels": least * 28**2, "max_pixels": most * 28**2}
    layout = DynamicLayout(
        14, 28, *bounds.values(), SCALE, "bicubic", "<image>", frames=frames, grown="at_once"
    )
    try:
        expected = smart_resize(frames, height, width, frames, 28, **bounds)
    except ValueError:
        assert max(height, width) > 190 * min(height, width)
        return
    if max(height, width) > 200 * min(height, width):
        return
    shape = layout.shape(height, width)
    assert shape.pixels[1:] == expected
    assert shape.rows <= layout.largest(max(height, width)).rows


@pytest.mark.full
@settings(deadline=None, max_examples=500)
@given(EDGES | st.integers(1, 60), EDGES | st.integers(1, 60))
def test_small_images_grow(height: int, width: int) -> None:
    """PaddleOCR-VL's images."""
    limits = 188 * 784, 3600 * 784
    layout = DynamicLayout(14, 28, *limits, SCALE, "bicubic", "<image>", grown="in_turn")
    if max(height, width) > 190 * min(height, width):
        return
    shape = layout.shape(height, width)
    expected = paddleocr.smart_resize(height, width, 28, *limits)
    assert shape.pixels[1:] == expected
    assert shape.rows <= layout.largest(max(height, width)).rows


@settings(deadline=None)
@given(EDGES, EDGES, st.integers(1, 3), st.integers(0, 9))
def test_grids(height: int, width: int, least: int, more: int) -> None:
    """InternVL's tiles."""
    columns, rows = get_optimal_tiled_canvas((height, width), (448, 448), least, least + more)
    assert best_grid(height, width, 448, least, least + more) == (rows, columns)
    layout = CanvasLayout(SquareTile(448, 32, 256), least, least + more, SCALE, "bicubic")
    assert layout.shape(height, width).rows <= layout.largest(5000).rows


@settings(deadline=None, max_examples=300)
@given(EDGES, EDGES, st.sampled_from([1, 2, 9, 36]), st.sampled_from(["4x", "16x"]))
def test_slices(height: int, width: int, most: int, mode: str) -> None:
    """MiniCPM-V's images."""
    theirs = MiniCPMV4_6ImageProcessorPil()
    images = {"image_mean": SCALE.mean, "image_std": SCALE.std, "max_slice_nums": most}
    layout = read_slices(Config(images, "test"), 14, {"4x": 2, "16x": 4}[mode])
    shape, size = layout.shape(height, width), (height, width)
    grid = theirs.get_sliced_grid(size, most, 448)
    assert shape.grid == tuple(grid or (0, 0))
    whole = theirs.find_best_resize(size, 448, 14, mode, allow_upscale=grid is None)
    assert shape.views[0] == (whole[0] // 14, whole[1] // 14)
    if grid is not None:
        refined = theirs.get_refine_size(size, grid, 448, 14, mode, allow_upscale=True)
        one = tuple(edge // parts // 14 for edge, parts in zip(refined, grid, strict=True))
        assert shape.views[1:] == (one,) * prod(grid)
    assert shape.text.count("<|image_pad|>") == shape.rows == shape.patches // layout.merged**2
    assert shape.text.count("\n") == max(shape.grid[0] - 1, 0)
    largest = layout.largest(max(height, width))
    assert shape.rows <= largest.rows
    assert shape.patches <= largest.patches
    assert max(map(prod, shape.views)) <= max(map(prod, largest.views))


@pytest.mark.parametrize("side", [6, 31, 70])
def test_nearest_positions_where_rounding_decides(side: int) -> None:
    """MiniCPM-V's, of which some are not those of a product with the step between patches."""
    differences = 0
    for rows in range(1, 80):
        theirs = get_vision_nearest_position_ids(torch.tensor([[rows, 3]]), side)
        assert (nearest_position_ids(rows, 3, side, divides=True) == theirs).all()
        differences += int((nearest_position_ids(rows, 3, side) != theirs).sum())
    assert differences or side == 6


def whole_and_tiles(least: int, most: int, tiles: int) -> WholeAndTilesLayout:
    whole = DynamicLayout(
        16, 32, least * 1024, most * 1024, SCALE, "bilinear", "<image>", least_squares=1
    )
    return WholeAndTilesLayout(whole, 512, min(2, tiles), tiles, 2.0, True)


@pytest.mark.parametrize("tiles", [1, 4, 10])
@settings(deadline=None)
@given(EDGES, EDGES)
def test_whole_and_tiles(tiles: int, height: int, width: int) -> None:
    """LFM2-VL's images."""
    layout = whole_and_tiles(64, 256, tiles)
    if max(height, width) > 200 * min(height, width):
        return
    shape = layout.shape(height, width)
    assert shape.text.count("<image>") == shape.rows == shape.patches // 4
    assert shape.patches == sum(map(prod, shape.views)) == shape.pixels[0]
    assert shape.rows <= layout.largest(max(height, width)).rows
    is_cut = height * width > 3 * 256 * 1024 and tiles > 1
    if is_cut:
        assert 2 <= prod(shape.grid) <= tiles


def test_patches_of_llama_4_are_folded_to_fewer_rows() -> None:
    tower = {**llama4.FAMILY.tower_defaults, "pixel_shuffle_ratio": 3}
    config = Config(tower, "test")
    with pytest.raises(NotReadable, match="projector"):
        llama4.read(VisionConfigs(config, config, config), None)  # type: ignore[arg-type]


@pytest.mark.parametrize(("hidden_size", "eps"), [(64, 0.1), (4096, 1e-3)])
def test_a_perceiver_of_another_size_has_the_epsilon_of_the_text(
    hidden_size: int, eps: float
) -> None:
    """As Idefics 2's, whose published config lacks both."""
    values = {**PERCEIVER_DEFAULTS, "hidden_size": hidden_size, "rms_norm_eps": 0.1}
    read = read_perceiver(Config(values, "test"), 32, Mlp(8), 64, Norm(1e-3))
    assert read.norm == Norm(eps)
    assert read.mlp.intermediate == 4 * 64
    with pytest.raises(NotReadable, match="16 heads with 3 of keys"):
        read_perceiver(
            Config({**values, "num_key_value_heads": 3}, "test"), 32, Mlp(8), 64, Norm(1e-3)
        )


def test_edges_below_a_patch_are_refused() -> None:
    size = {"shortest_edge": 13, "longest_edge": 980}
    with pytest.raises(NotReadable, match="13 pixels is less than a patch"):
        read_quarters(Config({"size": size}, "test"), 14, 64)
