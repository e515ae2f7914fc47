"""The images that the demo vision model learns from, and the questions about them."""

import math
import re
from random import Random

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import CLIPImageProcessor

from demo_training.vision.dialogues import dialogues
from demo_training.vision.drawing import draw
from demo_training.vision.evaluate import HELD_OUT_SEED, held_out_images
from demo_training.vision.palette import COLOURS, distance
from demo_training.vision.pixels import pixels
from demo_training.vision.questions import NUMBERS, QUESTIONS, count, describe, yes_or_no
from demo_training.vision.scene import MOST_ASKED, SHAPES, Group, Scene, place, random_scene

GROUP = re.compile(rf"(\w+) (\w+) ({'|'.join(SHAPES)})(?:s|es)?")


def scenes(seed: int, number: int) -> list[Scene]:
    rng = Random(seed)
    return [random_scene(rng) for _ in range(number)]


def drawn(scene: Scene) -> dict[tuple[str, str], int]:
    """How many figures of each colour and shape lie in the image."""
    kinds = [(figure.colour, figure.shape) for figure in scene.figures]
    return {kind: kinds.count(kind) for kind in kinds}


def test_figures_keep_apart_and_inside() -> None:
    for scene in scenes(1, 300):
        for figure in scene.figures:
            assert figure.radius < min(figure.x, figure.y, 1 - figure.x, 1 - figure.y)
        for index, one in enumerate(scene.figures):
            for other in scene.figures[:index]:
                gap = math.hypot(one.x - other.x, one.y - other.y)
                assert gap > one.radius + other.radius


@pytest.mark.full
def test_every_combination_occurs() -> None:
    groups = [group for scene in scenes(2, 6000) for group in scene.groups]
    assert len({(g.count, g.colour, g.shape) for g in groups}) == MOST_ASKED * len(COLOURS) * len(
        SHAPES
    )
    assert {len(scene.groups) for scene in scenes(2, 300)} == {0, 1}


def test_descriptions_say_what_was_drawn() -> None:
    for scene in scenes(3, 300):
        text = describe(Random(0), scene).answer
        assert text[0].isupper()
        assert text.endswith(".")
        said = [GROUP.fullmatch(part) for part in text.rstrip(".").lower().split(" and ")]
        counts = {
            (found[2], found[3]): NUMBERS.index(found[1]) for found in said if found is not None
        }
        assert counts == drawn(scene) or (text == "No shapes." and not scene.figures)


def test_counts_follow_from_the_figures() -> None:
    for scene in scenes(4, 300):
        assert count(Random(0), scene).answer.split()[0].lower() == NUMBERS[len(scene.figures)]


def test_yes_or_no_follows_from_the_figures() -> None:
    """The words of the question are looked up; a few have a typo and cannot be."""
    rng, right, scenes_asked = Random(4), 0, scenes(4, 400)
    for scene in scenes_asked:
        asked = yes_or_no(rng, scene)
        colours = [name for name in COLOURS if name in asked.question.lower()]
        shapes = [name for name in SHAPES if name in asked.question.lower()]
        there = any(
            colour in (colours or COLOURS) and shape in (shapes or SHAPES)
            for colour, shape in drawn(scene)
        )
        right += asked.answer == ("Yes." if there else "No.")
    assert right > 0.97 * len(scenes_asked)


def test_figures_have_their_colour() -> None:
    """The pixel in the middle of a figure looks more like its own colour than like any other."""
    right, total = 0, 0
    for scene in scenes(5, 150):
        image = draw(scene)
        short = min(image.size)
        left, top = ((side - short) / 2 for side in image.size)
        for figure in scene.figures:
            spot = image.getpixel((int(left + short * figure.x), int(top + short * figure.y)))
            assert isinstance(spot, tuple)
            nearest = min(
                COLOURS, key=lambda name: min(distance(spot[:3], c) for c in COLOURS[name])
            )
            right += nearest == figure.colour
            total += 1
    assert right > 0.9 * total


def test_images_are_the_same_each_time_and_differ() -> None:
    first, second = (np.asarray(draw(scenes(6, 1)[0])) for _ in range(2))
    assert np.array_equal(first, second)
    sizes = {draw(scene).size for scene in scenes(6, 60)}
    assert len(sizes) > 30
    assert any(width > height for width, height in sizes)
    assert any(width < height for width, height in sizes)


def test_dialogues_are_the_same_each_time() -> None:
    first, second = ([d.messages() for d in dialogues(5, 40)] for _ in range(2))
    assert first == second
    assert first != [d.messages() for d in dialogues(6, 40)]


@pytest.mark.full
def test_held_out_images_are_not_trained_on() -> None:
    assert HELD_OUT_SEED != 1234
    held_out = {scene.seed for chat in held_out_images(200) for scene in chat.scenes}
    assert not held_out & {s.seed for chat in dialogues(1234, 3000) for s in chat.scenes}


def test_all_kinds_of_questions_occur() -> None:
    kinds = {turn.asked.kind for chat in dialogues(8, 600) for turn in chat.turns}
    assert len(kinds) == len(QUESTIONS) + len(("talk", "not known", "no picture", "one of several"))


@pytest.mark.parametrize("size", [(96, 96), (97, 131), (200, 75), (64, 91), (255, 256), (301, 299)])
def test_pixels_are_those_of_the_processor(size: tuple[int, int]) -> None:
    noise = np.random.default_rng(9).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    image = Image.fromarray(noise)
    processor = CLIPImageProcessor(
        size={"shortest_edge": 96}, crop_size={"height": 96, "width": 96}
    )
    expected = processor(image, return_tensors="pt")["pixel_values"][0]
    torch.testing.assert_close(pixels(image, 96), expected, atol=1e-5, rtol=1e-5)


def test_too_many_figures_are_refused() -> None:
    with pytest.raises(ValueError, match="6 figures"):
        place(Random(0), (Group(6, "red", "circle"),))
