"""`python -m demo_training.vision.evaluate`: how often the model is right about new images.

Prints the share of right answers by the kind of question. An answer is right if it is the expected
text to the letter.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import torch
from tokenizers import Tokenizer

import mrs.demo

from .answer import greedy, prompt
from .dialogues import Dialogue, Turn, dialogue
from .export import read_folder
from .network import Llava, Shape
from .questions import describe
from .scene import random_scene
from .tower_training import scene_pixels

HELD_OUT_SEED = 987_654
_ROWS = 32
_MODEL = Path(mrs.demo.__file__).parent / "vision_model"


def held_out_images(count: int) -> Iterator[Dialogue]:
    """What is in the image? Asked about images outside the training data."""
    rng = Random(HELD_OUT_SEED)
    for _ in range(count):
        scene = random_scene(rng)
        yield Dialogue((Turn(describe(rng, scene), (scene,)),))


def held_out_dialogues(count: int) -> Iterator[Dialogue]:
    """Any dialogues, about images outside the training data."""
    rng = Random(HELD_OUT_SEED + 1)
    for _ in range(count):
        yield dialogue(rng)


def kind(dialogue: Dialogue) -> str:
    """What the last question asks for; a description by how many groups are described."""
    asked, scenes = dialogue.turns[-1].asked, dialogue.scenes
    if asked.kind != "description":
        return asked.kind
    return f"description, {('no shapes', 'one group', 'two groups')[len(scenes[-1].groups)]}"


def last_answers(
    model: Llava, tokenizer: Tokenizer, shape: Shape, chats: Sequence[Dialogue]
) -> Iterator[str]:
    """The model's own answer to the last question of each dialogue."""
    side = shape.vision.image_size
    for start in range(0, len(chats), _ROWS):
        group = chats[start : start + _ROWS]
        prompts = [prompt(tokenizer, chat, shape.vision.patches) for chat in group]
        images = scene_pixels([scene for chat in group for scene in chat.scenes], side)
        for ids in greedy(model, prompts, images, most=100):
            yield tokenizer.decode(ids)


def report(
    model: Llava,
    tokenizer: Tokenizer,
    shape: Shape,
    chats: Sequence[Dialogue],
    *,
    mistakes: int = 0,
) -> Iterator[str]:
    """Lines of a table: right answers and questions by kind, then the first few mistakes."""
    right, asked, wrong = Counter[str](), Counter[str](), []
    for chat, answer in zip(chats, last_answers(model, tokenizer, shape, chats), strict=True):
        expected = chat.turns[-1].asked
        asked[kind(chat)] += 1
        if answer == expected.answer:
            right[kind(chat)] += 1
        else:
            wrong.append(f"  {expected.question!r}: {answer!r}, not {expected.answer!r}")
    for name, total in (*sorted(asked.items()), ("all", asked.total())):
        good = right.total() if name == "all" else right[name]
        yield f"{name:28} {good:5} of {total:5}  {good / total:6.1%}"
    yield from wrong[:mistakes]


def main() -> None:
    """Parse the command line, load, ask, print."""
    parser = argparse.ArgumentParser(
        prog="python -m demo_training.vision.evaluate", description=__doc__
    )
    parser.add_argument("--model", type=Path, default=_MODEL, metavar="DIR")
    parser.add_argument("--count", type=int, default=500, help="of images, and of dialogues")
    parser.add_argument("--mistakes", type=int, default=0, metavar="N", help="show N of each")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default 1)")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    shape = Shape()
    model, tokenizer = read_folder(arguments.model, shape)
    for title, chats in (
        ("what is in the image?", held_out_images(arguments.count)),
        ("last questions of dialogues", held_out_dialogues(arguments.count)),
    ):
        print(title)
        for line in report(model, tokenizer, shape, list(chats), mistakes=arguments.mistakes):
            print(line, flush=True)


if __name__ == "__main__":
    main()
