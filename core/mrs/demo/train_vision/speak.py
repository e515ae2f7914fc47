# ruff: noqa: TID253 -- training is a program of its own, imported by nothing.
"""The second lesson: the whole model learns to answer questions about what its tower sees."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mrs.demo.train.fit import Encoded, like_length, to_tensors

from .dialogues import Dialogue
from .network import Llava, Shape
from .picture import draw
from .pixels import pixels
from .scene import Scene
from .schedule import Course, Optimizers


def look(scenes: Sequence[Scene], shape: Shape) -> Tensor:
    """The pictures of `scenes` as (scenes, 3, side, side); there may be none."""
    side = shape.vision.image_size
    made = [pixels(draw(scene), side) for scene in scenes]
    return torch.stack(made) if made else torch.empty(0, 3, side, side)


def speak(
    model: Llava,
    shape: Shape,
    chats: list[Dialogue],
    encoded: list[Encoded],
    course: Course,
    say: Callable[[str], None],
) -> None:
    """Trains `model` once on all of `chats`, `course.batch` tokens at a time."""
    torch.manual_seed(course.seed)
    batches = like_length(encoded, course.batch)
    Random(course.seed).shuffle(batches)
    inner = nn.ModuleList(
        [model.vision_tower.vision_model.encoder, model.language_model.model.layers]
    )
    optimizers = Optimizers(inner, (model,), course)
    for width, members in optimizers.steps(batches, say):
        tokens, targets = to_tensors([encoded[index] for index in members], width)
        scenes = [scene for index in members for scene in chats[index].scenes]
        hidden = model(tokens, look(scenes, shape)).flatten(0, 1)
        chosen = (targets.flatten() >= 0).nonzero().squeeze(1)
        optimizers.learn(F.cross_entropy(model.logits(hidden[chosen]), targets.flatten()[chosen]))
