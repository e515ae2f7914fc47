"""A program that runs every image processor in a process of its own and prints what each took.

Its lines are JSON: the layout, (width, height), MiB by which the process grew, seconds of
processor time, and MiB of the tensor that came out; or the refusal. The variable LAYOUTS may name
those that are asked for.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from math import prod

import torch
from PIL import Image

from mrs.architecture.vision.dynamic_layout import DynamicLayout
from mrs.architecture.vision.image_layouts import SquareTile
from mrs.architecture.vision_spec import ImageLayout, PixelScale
from mrs.errors import MrsError
from mrs.families.vision.gemma3 import PanAndScan, SquareLayout
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
from mrs.media import image_processors

_SCALE = PixelScale((0.5,) * 3, (0.5,) * 3)
_HOW = {"scale": _SCALE, "resampling": "bicubic"}
_WHOLE = DynamicLayout(16, 32, 64 * 32**2, 256 * 32**2, token="<image>", **_HOW)
_RESOLUTIONS = ((336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008))

#: One layout for each processor, with the sizes of a published model.
LAYOUTS: tuple[ImageLayout, ...] = (
    CropLayout(336, 336, 14, token="<image>", **_HOW),
    AnyResolutionLayout(336, 14, _RESOLUTIONS, token="<image>", **_HOW),
    SplitLayout(1536, 512, 16, 64, **_HOW),
    QuartersLayout(14, 378, 980, is_split=True, rows=64, **_HOW),
    SlicesLayout(14, 1, 448, 9, is_numbered=True, **_HOW),
    CanvasLayout(SquareTile(448, 32, 256), 1, 12, **_HOW),
    PaddedTilesLayout(SquareTile(336, 24, 144), 16, fills=False, **_HOW),
    SquareLayout(896, 14, 256, pan=PanAndScan(256, 4, 1.2), **_HOW),
    CropsLayout(336, 14, 16, _SCALE, "<image>"),
    PaddedCropsLayout(448, 14, 36, _SCALE, "<image>"),
    TilesLayout(560, 4, 1601, token="<image>", **_HOW),
    WholeAndTilesLayout(_WHOLE, 512, 2, 10, 2.0, has_whole=True),
    DynamicLayout(14, 28, 56**2, 28**2 * 1280, token="<image>", **_HOW),
    LongestEdgeLayout(1540, 28, 14, 2, token="[IMG]", row_end="", image_end="", **_HOW),
    AreaLayout(48, 3, 280, **_HOW),
    NearestGridLayout(32, 2, 1024, **_HOW),
)


def measured(work: Callable[[], object]) -> tuple[float, float]:
    """(MiB, seconds of processor time) that a forked process needs for `work`."""
    if (child := os.fork()) == 0:
        work()
        os._exit(0)
    _, status, used = os.wait4(child, 0)
    assert status == 0
    return used.ru_maxrss / 1024, used.ru_utime + used.ru_stime


def report(layout: ImageLayout, image: Image.Image) -> dict[str, object]:
    line: dict[str, object] = {"layout": type(layout).__name__, "size": image.size}
    try:
        shape = layout.shape(image.height, image.width)
    except MrsError as error:
        return line | {"refused": str(error)}
    before_mib, _ = measured(lambda: None)
    mib, seconds = measured(lambda: image_processors.prepare_image(layout, image, 0))
    output_mib = 4 * prod(shape.pixels) / 2**20
    return line | {"grown_mib": mib - before_mib, "cpu_s": seconds, "output_mib": output_mib}


def _is_asked_for(layout: ImageLayout) -> bool:
    names = os.environ.get("LAYOUTS", "").split()
    return not names or type(layout).__name__ in names


def main(sizes: list[str]) -> None:
    assert {type(layout) for layout in LAYOUTS} == set(image_processors._PROCESSORS)
    torch.set_num_threads(1)  # no pool of threads that a fork would lose
    for layout in LAYOUTS:  # what is imported and computed once
        image_processors.prepare_image(layout, Image.new("RGB", (20, 10)), 0)
    for size in sizes:
        width, height = map(int, size.split("x"))
        image = Image.new("RGB", (width, height), "red")
        for layout in filter(_is_asked_for, LAYOUTS):
            print(json.dumps(report(layout, image)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
