"""The first stage: the tower alone learns where the figures are, what they are, how many.

A probe reads that off the patch features and is thrown away afterwards. It teaches the tower far
faster than answers in words do, because every patch of every image has something to say. Shapes
come first, in crowds of figures, black on white; then colours fade in. Without this the tower
learns colours and no shape at all for a long time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .drawing import draw
from .network import Tower, VisionShape
from .palette import COLOURS
from .pixels import pixels
from .scene import SHAPES, Scene, random_crowd, random_scene
from .schedule import Course, Optimizers

_COLOURS = tuple(COLOURS)
_CROWDED, _EASY = 0.4, 0.2  # shares of the steps
_NOTHING = 0  # the class of a patch that lies on no figure
_COUNT_WEIGHT = 0.3


class Probe(nn.Module):
    """What each patch and the image as a whole can be read as."""

    def __init__(self, shape: VisionShape) -> None:
        super().__init__()
        width = shape.hidden_size
        self.norm = nn.LayerNorm(width)
        self.shape_here = nn.Linear(width, 1 + len(SHAPES))
        self.colour_here = nn.Linear(width, 1 + len(_COLOURS))
        self.mass = nn.Linear(width, len(SHAPES) + len(_COLOURS))

    def loss(self, features: Tensor, scenes: Sequence[Scene]) -> Tensor:
        """Of shapes, colours, masses and counts; `features` is (B, patches, hidden).

        Every figure has a mass of 1, spread over the patches around its centre, so that the sum
        over all patches counts figures. To say in which patch a centre lies would be harder: near
        an edge two patches would claim it, or none.
        """
        side = round(features.shape[1] ** 0.5)
        wanted = zip(*(_targets(scene, side) for scene in scenes), strict=True)
        shapes, colours, masses = (torch.stack(part) for part in wanted)
        x = self.norm(features)
        found = self.mass(x)
        wrong = F.smooth_l1_loss(found.sum(1), masses.sum(1), reduction="none")
        loss: Tensor = (
            F.cross_entropy(self.shape_here(x).flatten(0, 1), shapes.flatten())
            + F.cross_entropy(self.colour_here(x).flatten(0, 1), colours.flatten())
            + (found - masses).square().sum((1, 2)).mean()
            + _COUNT_WEIGHT * wrong.sum(1).mean()
        )
        return loss


def _targets(scene: Scene, side: int) -> tuple[Tensor, Tensor, Tensor]:
    """Shape and colour in each patch, both (patches,), and masses of each shape and colour."""
    shapes, colours = (torch.full((side, side), _NOTHING) for _ in range(2))
    masses = torch.zeros(len(SHAPES) + len(_COLOURS), side, side)
    middles = (torch.arange(side) + 0.5) / side
    for figure in scene.figures:
        shape, colour = SHAPES.index(figure.shape), _COLOURS.index(figure.colour)
        across, down = middles - figure.x, middles - figure.y
        inside = across.square()[None, :] + down.square()[:, None] < (0.8 * figure.radius) ** 2
        inside[int(figure.y * side), int(figure.x * side)] = True
        shapes[inside], colours[inside] = 1 + shape, 1 + colour
        # Linear in the distance from the centre, on to the next patch: the four nearest share it.
        shares = [(1 - side * distances.abs()).clamp(min=0) for distances in (down, across)]
        masses[[shape, len(SHAPES) + colour]] += torch.outer(*shares)
    return shapes.flatten(), colours.flatten(), masses.flatten(1).T


def train_tower(
    tower: Tower, shape: VisionShape, course: Course, say: Callable[[str], None]
) -> None:
    """Trains `tower` on `course.count` fresh images."""
    torch.manual_seed(course.seed)
    rng = Random(course.seed)
    probe = Probe(shape)
    inner = nn.ModuleList(
        [tower.vision_model.embeddings.patch_embedding, tower.vision_model.encoder]
    )
    optimizers = Optimizers(inner, (tower, probe), course)
    steps = course.count // course.batch
    for step in optimizers.steps(range(steps), say):
        make = random_crowd if step < _CROWDED * steps else random_scene
        scenes = [make(rng) for _ in range(course.batch)]
        ease = max(0.0, 1 - step / (_EASY * steps))
        optimizers.learn(probe.loss(tower(scene_pixels(scenes, shape.image_size, ease)), scenes))


def scene_pixels(scenes: Sequence[Scene], side: int, ease: float = 0.0) -> Tensor:
    """The images of `scenes` as (scenes, 3, side, side); there may be none."""
    made = [pixels(draw(scene, ease), side) for scene in scenes]
    return torch.stack(made) if made else torch.empty(0, 3, side, side)
