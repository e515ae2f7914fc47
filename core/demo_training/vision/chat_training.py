"""The second stage: projector and language model learn to answer questions about images.

The tower stays frozen, which makes training faster.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import torch
from torch import nn
from torch.nn import functional as F

from demo_training.text.fit import Encoded, like_length, to_tensors

from .dialogues import Dialogue
from .network import Llava
from .schedule import Course, Optimizers
from .tower_training import scene_pixels


def train_chat(
    model: Llava,
    side: int,
    chats: list[Dialogue],
    encoded: list[Encoded],
    course: Course,
    say: Callable[[str], None],
) -> None:
    """Trains `model` once on all of `chats`, `course.batch` tokens at a time.

    Images are `side` by `side` pixels.
    """
    torch.manual_seed(course.seed)
    batches = like_length(encoded, course.batch)
    Random(course.seed).shuffle(batches)
    inner = nn.ModuleList([model.multi_modal_projector, model.language_model.model.layers])
    optimizers = Optimizers(inner, (model.multi_modal_projector, model.language_model), course)
    for width, members in optimizers.steps(batches, say):
        tokens, targets = to_tensors([encoded[index] for index in members], width)
        scenes = [scene for index in members for scene in chats[index].scenes]
        with torch.no_grad():
            features = model.vision_tower(scene_pixels(scenes, side))
        hidden = model.hidden_states(tokens, model.multi_modal_projector(features)).flatten(0, 1)
        chosen = (targets.flatten() >= 0).nonzero().squeeze(1)
        loss = F.cross_entropy(model.logits(hidden[chosen]), targets.flatten()[chosen])
        optimizers.learn(loss)
