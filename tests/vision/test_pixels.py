"""Pictures become the numbers that transformers' processors on Pillow make of them."""

from __future__ import annotations

import pytest
import torch
from vision_cases import REPRESENTATIVES, SEEING
from vision_reference import VisionReference, picture
from vision_running import LoadedVisionModel, load_vision_model

from mrs.architecture.vision_spec import ImageLayout, PixelScale
from mrs.errors import UsageError
from support.suites import kinds


@pytest.fixture(scope="session", params=kinds(SEEING, REPRESENTATIVES))
def truth(request: pytest.FixtureRequest, vision_references) -> VisionReference:
    """Of models that see."""
    return vision_references(request.param)


@pytest.fixture(scope="session")
def model(truth: VisionReference) -> LoadedVisionModel:
    """The folder's own fixture would take a truth of the folder's for one of these."""
    return load_vision_model(truth.folder)


SIZES = [(37, 53), (53, 37), (1, 1), (7, 200), (201, 6), (64, 64), (333, 127)]


def in_steps(ours: torch.Tensor, theirs: torch.Tensor, scale: PixelScale) -> float:
    """The largest difference, in steps of a byte."""
    assert ours.numel() == theirs.numel()
    return float((ours.flatten() - theirs.flatten()).abs().max() * max(scale.std) / scale.factor)


@pytest.mark.each_family
@pytest.mark.values
@pytest.mark.table("pixels")
@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA"])
@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_pixels(
    model: LoadedVisionModel, truth: VisionReference, size: tuple[int, int], mode: str
) -> None:
    image = picture(*size, mode=mode)
    if mode == "RGBA":
        image.putalpha(picture(*size, seed=1, mode="L"))
    (ours,) = model.prepare([image])
    assert tuple(ours.pixels.shape) == ours.shape.pixels
    theirs = truth.pixels(image)
    assert in_steps(ours.pixels, theirs, model.vision.layout.scale) <= 1


def is_refused(layout: ImageLayout, width: int, height: int) -> bool:
    """Whether a picture is too narrow for a model; none is refused but the narrowest."""
    try:
        layout.shape(height, width)
    except UsageError:
        assert max(width, height) >= 200 * min(width, height)
        return True
    return False


def test_no_picture_is_larger_than_the_largest(model: LoadedVisionModel) -> None:
    layout = model.vision.layout
    for edge in (16, 60, 200, 1024):
        most = layout.largest(edge)
        for width, height in [*SIZES, (edge, 1), (1, edge), (edge, edge), (edge, edge // 2 + 1)]:
            if max(width, height) <= edge and not is_refused(layout, width, height):
                shape = layout.shape(height, width)
                assert shape.rows <= most.rows
                assert shape.patches <= most.patches
