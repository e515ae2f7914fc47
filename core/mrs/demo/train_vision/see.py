# ruff: noqa: TID253 -- training is a program of its own, imported by nothing.
"""The first lesson: the tower alone learns where the figures are, what they are, how many.

A probe reads that off the patch features and is thrown away afterwards. It teaches the tower far
faster than answers in words do, because every patch of every picture has something to say. Shapes
come first, in crowds of figures, black on white; then colours fade in. Without this the tower
learns colours and no shape at all for a long time.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .network import Tower, VisionShape
from .palette import COLOURS
from .picture import draw
from .pixels import pixels
from .scene import MOST, SHAPES, Scene, random_crowd, random_scene
from .schedule import Course, Optimizers

_COLOURS = tuple(COLOURS)
_CROWDED, _EASY = 0.65, 0.4  # shares of the lesson
_NOTHING = 0  # the class of a patch that lies on no figure
_RARE = 12.0  # centres are rare among patches, and weigh as much more


class Probe(nn.Module):
    """What each patch and the picture as a whole can be read as."""

    def __init__(self, shape: VisionShape) -> None:
        super().__init__()
        width = shape.hidden_size
        self.norm = nn.LayerNorm(width)
        self.shape_here = nn.Linear(width, 1 + len(SHAPES))
        self.colour_here = nn.Linear(width, 1 + len(_COLOURS))
        self.centre_here = nn.Linear(width, 2)
        self.counts = nn.Linear(width, (len(SHAPES) + len(_COLOURS)) * (MOST + 1))

    def loss(self, features: Tensor, scenes: list[Scene]) -> Tensor:
        """Of shapes, colours and centres in each patch; `features` is (B, patches, hidden)."""
        side = round(features.shape[1] ** 0.5)
        wanted = zip(*(_targets(scene, side) for scene in scenes), strict=True)
        shapes, colours, centres = (torch.stack(part).flatten() for part in wanted)
        x = self.norm(features).flatten(0, 1)
        weight = torch.tensor([1.0, _RARE])
        return (
            F.cross_entropy(self.shape_here(x), shapes)
            + F.cross_entropy(self.colour_here(x), colours)
            + F.cross_entropy(self.centre_here(x), centres, weight=weight)
        )

    def count_loss(self, features: Tensor, scenes: list[Scene]) -> Tensor:
        """Of how many figures there are of each shape and of each colour, `MOST` at most."""
        counted = self.counts(self.norm(features).mean(dim=1)).unflatten(-1, (-1, MOST + 1))
        wanted = torch.tensor([_counts(scene) for scene in scenes])
        return F.cross_entropy(counted.flatten(0, 1), wanted.flatten())


def _counts(scene: Scene) -> list[int]:
    shapes = [figure.shape for figure in scene.figures]
    colours = [figure.colour for figure in scene.figures]
    return [*map(shapes.count, SHAPES), *map(colours.count, _COLOURS)]


def _targets(scene: Scene, side: int) -> tuple[Tensor, Tensor, Tensor]:
    """Shape, colour and whether there is a centre, each (patches,)."""
    shapes, colours, centres = (torch.full((side, side), _NOTHING) for _ in range(3))
    middles = (torch.arange(side) + 0.5) / side
    for figure in scene.figures:
        squares = (middles - figure.x)[None, :] ** 2 + (middles - figure.y)[:, None] ** 2
        inside = squares < (0.8 * figure.radius) ** 2
        row, column = int(figure.y * side), int(figure.x * side)
        inside[row, column] = True
        shapes[inside] = 1 + SHAPES.index(figure.shape)
        colours[inside] = 1 + _COLOURS.index(figure.colour)
        centres[row, column] = 1
    return shapes.flatten(), colours.flatten(), centres.flatten()


def see(tower: Tower, shape: VisionShape, course: Course, say: Callable[[str], None]) -> None:
    """Trains `tower` on `course.count` fresh pictures."""
    torch.manual_seed(course.seed)
    rng = Random(course.seed)
    probe = Probe(shape)
    inner = nn.ModuleList(
        [tower.vision_model.embeddings.patch_embedding, tower.vision_model.encoder]
    )
    optimizers = Optimizers(inner, (tower, probe), course)
    steps = course.count // course.batch
    for step in optimizers.steps(range(steps), say):
        crowded, ease = step < _CROWDED * steps, max(0.0, 1 - step / (_EASY * steps))
        scenes = [(random_crowd if crowded else random_scene)(rng) for _ in range(course.batch)]
        batch = torch.stack([pixels(draw(scene, ease), shape.image_size) for scene in scenes])
        features = tower(batch)
        loss = probe.loss(features, scenes)
        optimizers.learn(loss if crowded else loss + probe.count_loss(features, scenes))
