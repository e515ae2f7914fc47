"""Draws a scene with Pillow: size, background, light and noise all come from the scene's seed."""

from __future__ import annotations

import colorsys
import io
import math
from functools import cache
from random import Random

import numpy as np
from PIL import Image, ImageChops, ImageDraw, ImageFilter

from .palette import Colour, distance, shade, vary
from .scene import Figure, Scene

_OVERSAMPLING = 4
_CONTRAST = 150.0
_Points = list[tuple[float, float]]


def draw(scene: Scene, ease: float = 0.0) -> Image.Image:
    """The image of `scene`, RGB, the same one each time.

    `ease` is for lessons: towards 1 all colours fade to black on white, and noise goes.
    """
    rng = Random(scene.seed)
    short = rng.choice((96, 96, rng.randint(72, 128), rng.randint(96, 256)))
    stretch = rng.choice((1.0, 1.0, rng.uniform(1, 1.35)))
    long = round(short * stretch)
    size = (short, long) if rng.random() < 0.5 else (long, short)
    colours = _figure_colours(rng, scene)
    image = _background(rng, size, list(colours.values()))
    image = Image.blend(image, Image.new("RGB", size, "white"), ease)
    for figure in scene.figures:
        red, green, blue = (round(c * (1 - ease)) for c in vary(rng, colours[figure.colour], 4))
        _draw_figure(image, figure, (red, green, blue))
    return image if rng.random() < ease else _worn(rng, image)


def _figure_colours(rng: Random, scene: Scene) -> dict[str, Colour]:
    return {group.colour: shade(rng, group.colour) for group in scene.groups}


def _background(rng: Random, size: tuple[int, int], colours: list[Colour]) -> Image.Image:
    """Plain, shaded, striped or cloudy, in colours from which all of `colours` stand out."""
    first = _background_colour(rng, colours)
    kind = rng.choices(("plain", "shaded", "striped", "cloudy"), (5, 2, 1, 2))[0]
    if kind == "plain":
        return Image.new("RGB", size, first)
    second = next(
        (
            colour
            for colour in (vary(rng, first, 45) for _ in range(20))
            if _stands_out(colour, colours)
        ),
        first,
    )
    masks = {"shaded": _ramp, "striped": _stripes, "cloudy": _clouds}
    return Image.composite(
        Image.new("RGB", size, first), Image.new("RGB", size, second), masks[kind](rng, size)
    )


def _background_colour(rng: Random, colours: list[Colour]) -> Colour:
    while True:
        kind = rng.random()
        if kind < 0.3:
            colour = vary(rng, (247, 247, 247), 8)
        elif kind < 0.4:
            colour = vary(rng, (12, 12, 12), 12)
        else:
            saturation = rng.uniform(0, 0.4) if kind < 0.85 else rng.uniform(0.4, 1)
            channels = colorsys.hsv_to_rgb(rng.random(), saturation, rng.uniform(0.15, 1))
            red, green, blue = (round(255 * channel) for channel in channels)
            colour = red, green, blue
        if _stands_out(colour, colours):
            return colour


def _stands_out(background: Colour, colours: list[Colour]) -> bool:
    return all(distance(background, colour) >= _CONTRAST for colour in colours)


def _ramp(rng: Random, size: tuple[int, int]) -> Image.Image:
    """A gradient in a random direction."""
    ramp = Image.linear_gradient("L").rotate(rng.uniform(0, 360), Image.Resampling.BILINEAR)
    middle = (50, 50, 206, 206)  # no corner of the rotated square reaches into it
    return ramp.crop(middle).resize(size, Image.Resampling.BILINEAR)


def _stripes(rng: Random, size: tuple[int, int]) -> Image.Image:
    mask = Image.new("L", size)
    pen = ImageDraw.Draw(mask)
    step = max(4, round(min(size) * rng.uniform(0.06, 0.25)))
    upright = rng.random() < 0.5
    for at in range(0, max(size), 2 * step):
        box = (at, 0, at + step, size[1]) if upright else (0, at, size[0], at + step)
        pen.rectangle(box, fill=255)
    return mask


def _clouds(rng: Random, size: tuple[int, int]) -> Image.Image:
    cells = rng.randint(3, 12)
    grid = np.random.default_rng(rng.getrandbits(32)).integers(0, 256, (cells, cells))
    return Image.fromarray(grid.astype(np.uint8)).resize(size, Image.Resampling.BICUBIC)


def _draw_figure(image: Image.Image, figure: Figure, colour: Colour) -> None:
    """Fills the figure's outline, smoothed at the edge by drawing it larger first."""
    short = min(image.size)
    left, top = ((side - short) / 2 for side in image.size)
    x, y, radius = (short * value for value in (figure.x, figure.y, figure.radius))
    x, y = x + left, y + top
    corner = math.floor(x - radius) - 1, math.floor(y - radius) - 1
    side = math.ceil(2 * radius) + 3
    cosine, sine = math.cos(figure.rotation), math.sin(figure.rotation)
    points = [
        (
            _OVERSAMPLING * (x + radius * (u * cosine - v * sine) - corner[0]),
            _OVERSAMPLING * (y + radius * (u * sine + v * cosine) - corner[1]),
        )
        for u, v in _outline(figure.shape)
    ]
    mask = Image.new("L", (side * _OVERSAMPLING, side * _OVERSAMPLING))
    ImageDraw.Draw(mask).polygon(points, fill=255)
    image.paste(colour, corner, mask.reduce(_OVERSAMPLING))


@cache
def _outline(shape: str) -> _Points:
    """The corners of a shape that touches the unit circle from inside; y points down."""
    if shape == "circle":
        return _on_circle([1.0] * 48)
    if shape == "square":
        return [(a * 0.5**0.5, b * 0.5**0.5) for a, b in ((-1, -1), (1, -1), (1, 1), (-1, 1))]
    if shape == "triangle":
        return _on_circle([1.0] * 3)
    if shape == "star":
        return _on_circle([1.0, 0.42] * 5)
    if shape == "heart":
        return _heart()
    if shape == "cross":
        arm, width = 0.95, 0.3
        quarter = [(width, -arm), (width, -width), (arm, -width)]
        turns = ((1, 0), (0, 1), (-1, 0), (0, -1))
        return [(u * c - v * s, u * s + v * c) for c, s in turns for u, v in quarter]
    raise ValueError(f"no shape is called {shape}")


def _on_circle(radii: list[float]) -> _Points:
    """Points at equal angles from the top on, each at its own distance from the centre."""
    angles = [2 * math.pi * at / len(radii) for at in range(len(radii))]
    return [(r * math.sin(a), -r * math.cos(a)) for r, a in zip(radii, angles, strict=True)]


def _heart() -> _Points:
    """The well-known curve of four cosines, moved and scaled to fill the unit circle."""
    angles = [2 * math.pi * at / 48 for at in range(48)]
    waves = [
        (16 * math.sin(a) ** 3, -sum(w * math.cos(n * a) for n, w in _HEART_WAVES.items()))
        for a in angles
    ]
    return [(x / 17.2, (y - 1.2) / 17.2) for x, y in waves]


_HEART_WAVES = {1: 13, 2: -5, 3: -2, 4: -1}


def _worn(rng: Random, image: Image.Image) -> Image.Image:
    """The image as a camera may give it: uneven light, blur, noise, compression."""
    if rng.random() < 0.25:
        light = _ramp(rng, image.size).point([200 + at * 55 // 255 for at in range(256)])
        image = ImageChops.multiply(image, Image.merge("RGB", [light] * 3))
    if rng.random() < 0.2:
        image = image.filter(ImageFilter.GaussianBlur(rng.uniform(0.2, 0.007 * min(image.size))))
    if rng.random() < 0.5:
        image = _noisy(rng, image)
    if rng.random() < 0.2:
        compressed = io.BytesIO()
        image.save(compressed, "JPEG", quality=rng.randint(50, 95))
        image = Image.open(compressed).convert("RGB")
    return image


def _noisy(rng: Random, image: Image.Image) -> Image.Image:
    values = np.asarray(image, dtype=np.float32)
    noise = np.random.default_rng(rng.getrandbits(32)).standard_normal(values.shape, np.float32)
    noisy = values + noise * rng.uniform(2, 12)
    return Image.fromarray(noisy.clip(0, 255).round().astype(np.uint8))
