"""`python -m demo_training.vision.examples --output DIR`: draw a few images to try the model on.

Each is named after its content, as in `three_red_circles.png`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from random import Random

from .questions import description
from .scene import Group, Scene, in_order, place

_SEED = 132
_GROUPS = (
    (Group(3, "red", "circle"),),
    (Group(1, "blue", "star"),),
    (Group(2, "green", "triangle"),),
)


def examples() -> Iterator[tuple[str, Scene]]:
    """The scenes and their file names."""
    rng = Random(_SEED)
    for groups in _GROUPS:
        scene = place(rng, in_order(list(groups)))
        yield description(scene).rstrip(".").lower().replace(" ", "_") + ".png", scene


def main() -> None:
    """Parse the command line, draw, write."""
    from .drawing import draw

    parser = argparse.ArgumentParser(
        prog="python -m demo_training.vision.examples", description=__doc__
    )
    parser.add_argument("--output", type=Path, required=True, metavar="DIR")
    folder = parser.parse_args().output
    folder.mkdir(parents=True, exist_ok=True)
    for name, scene in examples():
        draw(scene).save(folder / name, optimize=True)
        print(folder / name)


if __name__ == "__main__":
    main()
