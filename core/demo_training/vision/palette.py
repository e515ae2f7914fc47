"""The colours that the demo model knows, and how far apart two colours appear."""

from __future__ import annotations

import math
from random import Random

Colour = tuple[int, int, int]

# What each name stands for: its plain form first, then others that people call by it.
COLOURS: dict[str, tuple[Colour, ...]] = {
    "red": ((255, 0, 0), (220, 20, 40), (200, 30, 30)),
    "orange": ((255, 140, 0), (255, 165, 0), (240, 120, 20)),
    "yellow": ((255, 255, 0), (250, 225, 40), (240, 220, 80)),
    "green": ((0, 128, 0), (0, 200, 0), (50, 160, 80), (0, 255, 0)),
    "blue": ((0, 0, 255), (30, 90, 220), (25, 40, 150), (60, 130, 230)),
    "purple": ((128, 0, 128), (110, 50, 180), (150, 60, 200)),
    "pink": ((255, 105, 180), (255, 175, 195), (245, 140, 180)),
    "brown": ((139, 69, 19), (120, 72, 35), (101, 67, 33)),
    "black": ((0, 0, 0), (25, 25, 25)),
    "white": ((255, 255, 255), (242, 242, 242)),
}
_SHADE = 10


def shade(rng: Random, name: str) -> Colour:
    """One of the colours that `name` stands for, a little varied."""
    red, green, blue = rng.choice(COLOURS[name])
    return vary(rng, (red, green, blue), _SHADE)


def vary(rng: Random, colour: Colour, most: int) -> Colour:
    """`colour` with each channel moved by at most `most`."""
    red, green, blue = (min(255, max(0, c + rng.randint(-most, most))) for c in colour)
    return red, green, blue


def distance(first: Colour, second: Colour) -> float:
    """How far apart two colours appear, 0 to about 765: channels weighted by the mean red.

    The low-cost approximation of T. Riemersma, "Colour metric" (CompuPhase).
    """
    mean = (first[0] + second[0]) / 2
    red, green, blue = (a - b for a, b in zip(first, second, strict=True))
    weighted = (2 + mean / 256) * red**2 + 4 * green**2 + (2 + (255 - mean) / 256) * blue**2
    return math.sqrt(weighted)
