"""`python -m demo_training.vision --output DIR`: train the demo vision model from random weights.

The same machine, thread count and torch give the same bytes; other machines give other bytes and
a model of the same quality.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from demo_training.command import train_from_command_line

from .chat_training import train_chat
from .dialogues import dialogues
from .evaluate import held_out_images, report
from .export import read_folder, write_folder
from .network import Llava, Shape
from .schedule import Course
from .tower_training import train_tower
from .vocabulary import IMAGE_ID, encode, make_tokenizer

_TOWER = Course(count=160_000, batch=16, matrix_rate=0.02, other_rate=0.002)
_CHAT = (
    Course(count=70_000, batch=4096, matrix_rate=0.02, other_rate=0.002),
    Course(count=50_000, batch=4096, matrix_rate=0.012, other_rate=0.0012, seed=4321),
)


@dataclass(frozen=True)
class Recipe:
    """The training courses: the vision tower, then the chat, each time on fresh dialogues."""

    tower: Course = _TOWER
    chat: tuple[Course, ...] = _CHAT
    seed: int = 1234


def main() -> None:
    """Parse the command line, train, write, judge."""
    folder = train_from_command_line(
        "demo_training.vision", __doc__, 1, lambda folder: train(folder, Recipe(), Shape())
    )
    shape = Shape()
    model, tokenizer = read_folder(folder, shape)
    for line in report(model, tokenizer, shape, list(held_out_images(500))):
        print(line, flush=True)


def train(folder: Path, recipe: Recipe, shape: Shape) -> None:
    """Make the dialogues, fit tokenizer and model, and write them into `folder`."""
    first = recipe.chat[0]
    tokenizer = make_tokenizer(
        list(dialogues(first.seed, min(first.count, 20_000))), shape.text.vocab_size
    )
    torch.manual_seed(recipe.seed)
    model = Llava(shape, IMAGE_ID)
    train_tower(model.vision_tower, shape.vision, recipe.tower, say)
    for course in recipe.chat:
        chats = list(dialogues(course.seed, course.count))
        encoded = encode(tokenizer, chats, shape.vision.patches)
        print(f"{len(encoded)} dialogues, {sum(len(ids) for ids, _ in encoded)} tokens", flush=True)
        train_chat(model, shape.vision.image_size, chats, encoded, course, say)
    state = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    print(f"{sum(tensor.numel() for tensor in state.values())} parameters", flush=True)
    write_folder(folder, shape, state, tokenizer)


def say(line: str) -> None:
    """Prints a line of progress immediately."""
    print(line, flush=True)


if __name__ == "__main__":
    main()
