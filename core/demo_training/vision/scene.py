"""The content of an image: groups of equal shapes, and the position of each shape."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random

from .palette import COLOURS

SHAPES = ("circle", "square", "triangle", "star", "heart", "cross")
#: The most figures in one scene, and in a scene that questions are asked about.
MOST_FIGURES, MOST_ASKED = 5, 3
_TRIES = 60
# Half the size of a figure as a share of the image's shorter side, by how many figures there are.
_RADII = {1: (0.20, 0.42), 2: (0.16, 0.25), 3: (0.14, 0.22), 4: (0.13, 0.19), 5: (0.12, 0.17)}


@dataclass(frozen=True)
class Group:
    """Figures of one colour and one shape."""

    count: int
    colour: str
    shape: str


@dataclass(frozen=True)
class Figure:
    """One drawn shape. The unit of `x`, `y` and `radius` is the shorter side of the image.

    (0, 0) and (1, 1) are corners of the square in the image's middle. The figure touches the
    circle of `radius` around its centre from inside; `rotation` is in radians.
    """

    colour: str
    shape: str
    x: float
    y: float
    radius: float
    rotation: float


@dataclass(frozen=True)
class Scene:
    """Groups (largest first), their figures, and a seed for size, background, light and noise."""

    groups: tuple[Group, ...]
    figures: tuple[Figure, ...]
    seed: int

    @property
    def count(self) -> int:
        """How many figures there are."""
        return len(self.figures)


def in_order(groups: list[Group]) -> tuple[Group, ...]:
    """The one order in which groups are named: the larger first, then as `SHAPES`, `COLOURS`."""
    colours = tuple(COLOURS)
    return tuple(
        sorted(groups, key=lambda g: (-g.count, SHAPES.index(g.shape), colours.index(g.colour)))
    )


def random_groups(rng: Random) -> tuple[Group, ...]:
    """One group of `MOST_ASKED` figures at most, or now and then none."""
    if rng.random() < 0.03:
        return ()
    return (Group(rng.randint(1, MOST_ASKED), rng.choice(tuple(COLOURS)), rng.choice(SHAPES)),)


def random_scene(rng: Random) -> Scene:
    """Random groups at random positions."""
    return place(rng, random_groups(rng))


def random_crowd(rng: Random) -> Scene:
    """At least `MOST_FIGURES` figures of any shape in one to three colours, for learning shapes."""
    colours = rng.sample(tuple(COLOURS), rng.randint(1, 3))
    tilted = rng.random() < 0.5
    figures: list[Figure] = []
    base = 0.1 + 0.3 * rng.random() ** 3
    for _ in range(rng.randint(MOST_FIGURES, 12)):
        radius = base * rng.uniform(0.85, 1.2)
        if spot := _free_spot(rng, figures, radius):
            rotation = rng.uniform(0, 2 * math.pi) if tilted else 0.0
            kind = rng.choice(colours), rng.choice(SHAPES)
            figures.append(Figure(*kind, *spot, radius, rotation))
    kinds = [(figure.colour, figure.shape) for figure in figures]
    groups = [Group(kinds.count(kind), *kind) for kind in dict.fromkeys(kinds)]
    return Scene(in_order(groups), tuple(figures), rng.getrandbits(32))


def place(rng: Random, groups: tuple[Group, ...]) -> Scene:
    """Puts the figures of `groups` where they neither touch nor leave the middle square."""
    count = sum(group.count for group in groups)
    if count > MOST_FIGURES:
        raise ValueError(f"{count} figures in one image, the maximum is {MOST_FIGURES}")
    low, high = _RADII[max(1, count)]
    base = rng.uniform(low, high)
    tilted = rng.random() < 0.5
    while True:
        figures: list[Figure] = []
        for group in groups:
            size = base * rng.uniform(0.8, 1.2)
            for _ in range(group.count):
                radius = min(0.47, max(0.095, size * rng.uniform(0.8, 1.2)))
                rotation = rng.uniform(0, 2 * math.pi) if tilted else 0.0
                if spot := _free_spot(rng, figures, radius):
                    figures.append(Figure(group.colour, group.shape, *spot, radius, rotation))
        if len(figures) == count:
            return Scene(groups, tuple(figures), rng.getrandbits(32))
        base *= 0.9


def _free_spot(rng: Random, figures: list[Figure], radius: float) -> tuple[float, float] | None:
    for _ in range(_TRIES):
        x, y = (rng.uniform(radius + 0.01, 0.99 - radius) for _ in range(2))
        if all(math.hypot(x - f.x, y - f.y) > radius + f.radius + 0.02 for f in figures):
            return x, y
    return None
