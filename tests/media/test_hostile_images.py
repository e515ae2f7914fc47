"""Images of few bytes and many pixels cost what their models need, not more; from outside."""

from __future__ import annotations

import base64
import io
import json
import os
import subprocess
import sys
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from PIL.Image import Resampling

from mrs.architecture.vision_spec import MAX_ASPECT_RATIO
from mrs.errors import NotReadable
from mrs.media import pixels
from mrs.media.open_image import open_image
from mrs.media.read_media import read_media

PROCESSORS = 16
#: What is neither the image, a copy of it, nor the tensor: Pillow's image between rows and columns.
BETWEEN_MIB = 64
SPARE_MIB = 24
#: Steps of a byte between passes in either order.
ROUNDED = 2


def measure(*sizes: str, layouts: str = "") -> list[dict[str, Any]]:
    """The lines of `measure_processors`, of all processors or of those named."""
    program = Path(__file__).with_name("measure_processors.py")
    # Freed memory goes back at once, so that nothing is hidden in it.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(2**18)}
    output = subprocess.run(
        [sys.executable, str(program), *sizes],
        env={**environment, "LAYOUTS": layouts},
        stdout=subprocess.PIPE,
        check=True,
    ).stdout
    return [json.loads(line) for line in output.splitlines()]


@pytest.mark.full
@pytest.mark.parametrize(
    "sizes",
    [
        ("1x200", "1500x1000"),
        pytest.param(("1x1", "200x1", "3000x4000"), marks=pytest.mark.full),
        pytest.param(("20000x100", "300x60000"), marks=pytest.mark.full),
    ],
)
def test_every_processor_has_a_bound_of_memory_and_time(sizes: tuple[str, ...]) -> None:
    lines = measure(*sizes)
    assert len(lines) == PROCESSORS * len(sizes)
    for line in lines:
        assert "refused" not in line
        copied_mib = 4 * prod(line["size"]) / 2**20
        bound_mib = copied_mib + 4 * line["output_mib"] + BETWEEN_MIB + SPARE_MIB
        assert line["grown_mib"] < bound_mib, line
        assert line["cpu_s"] < 10, line


@pytest.mark.full
def test_the_centre_of_a_line_needs_no_memory_even_if_nobody_refuses_it() -> None:
    lines = measure("1x60000", "60000x1", layouts="CropLayout")
    assert len(lines) == 2
    for line in lines:
        assert line["grown_mib"] < SPARE_MIB
        assert line["cpu_s"] < 5


@pytest.mark.few("1-60000", "60000-1")
@pytest.mark.parametrize(
    ("width", "height"), [(1, 60000), (60000, 1), (65535, 1), (1, 201), (3, 601), (2, 20_000_000)]
)
def test_a_line_is_refused_before_it_is_decoded(
    width: int, height: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = io.BytesIO()
    Image.new("L", (width, height)).save(file, "PNG")
    source = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", lambda _: pytest.fail("decoded"))
    with pytest.raises(NotReadable, match=r"times as long as wide\): crop it to 200 times"):
        open_image(read_media(source))


@pytest.mark.parametrize("size", [(1, MAX_ASPECT_RATIO), (MAX_ASPECT_RATIO, 1), (3, 600)])
def test_the_narrowest_image_is_read(size: tuple[int, int], tmp_path: Path) -> None:
    Image.new("L", size).save(tmp_path / "a.png")
    assert open_image(read_media(str(tmp_path / "a.png"))).image.size == size


def picture(width: int, height: int) -> Image.Image:
    """Of middle brightness, so that filters overshoot no byte: Pillow chooses the order of passes
    by size, and each one rounds."""
    values = np.random.default_rng(width).integers(100, 156, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(values)


@pytest.mark.parametrize("resampling", ["bicubic", "bilinear", "lanczos"])
@pytest.mark.parametrize(
    ("size", "scaled"),
    [
        ((7, 200), (24, 685)),
        ((200, 7), (685, 24)),
        ((300, 200), (60, 40)),
        ((37, 53), (24, 34)),
        ((90, 800), (48, 50)),
        ((20, 20), (40, 40)),
    ],
)
def test_parts_are_those_of_the_whole(
    size: tuple[int, int],
    scaled: tuple[int, int],
    resampling: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    image, (width, height) = picture(*size), scaled
    whole = image.resize(scaled, Resampling[resampling.upper()])
    monkeypatch.setattr(pixels, "_MOST_PIXELS", 700)
    in_strips = pixels.resize(image, height, width, resampling)
    difference = np.asarray(in_strips, dtype=int) - np.asarray(whole, dtype=int)
    assert abs(difference).max() <= ROUNDED
    for edge in (24, 32, 60):  # the last one has a border
        left, top = (width - edge) // 2, (height - edge) // 2
        expected = whole.crop((left, top, left + edge, top + edge))
        center = pixels.resize_center(image, height, width, edge, resampling)
        difference = np.asarray(center, dtype=int) - np.asarray(expected, dtype=int)
        assert abs(difference).max() <= ROUNDED
