"""The dialogues that the model is trained on: images, and what is said about them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from demo_training.text.wording import sentence

from .questions import Asked, description, question
from .scene import Scene, random_scene
from .small_talk import out_of_place, small_talk, without_image

_SYSTEMS = ("You are a helpful assistant.", "Answer briefly.", "You look at pictures.",
            "You are the mrs vision demo.", "Be kind and precise.")  # fmt: skip
# How many more questions follow the first one, with weights.
_MORE = {0: 20, 1: 20, 2: 20, 3: 15, 4: 12, 5: 8, 7: 5}
_ORDINALS = ("first", "second", "third")


@dataclass(frozen=True)
class Turn:
    """A question, with the images that come with it, and the answer."""

    asked: Asked
    scenes: tuple[Scene, ...] = ()


@dataclass(frozen=True)
class Dialogue:
    """Turns, and the system prompt or an empty text."""

    turns: tuple[Turn, ...]
    system: str = ""

    @property
    def scenes(self) -> tuple[Scene, ...]:
        """All images in order."""
        return tuple(scene for turn in self.turns for scene in turn.scenes)

    def messages(self) -> list[dict[str, Any]]:
        """The dialogue as chat templates take it, images as parts without their pixels."""
        messages: list[dict[str, Any]] = []
        if self.system:
            messages.append({"role": "system", "content": self.system})
        for turn in self.turns:
            text = turn.asked.question
            parts: list[dict[str, str]] = [{"type": "image"}] * len(turn.scenes)
            parts += [{"type": "text", "text": text}] if text else []
            messages.append({"role": "user", "content": parts if turn.scenes else text})
            messages.append({"role": "assistant", "content": turn.asked.answer})
        return messages

    def written(self, image: str) -> list[dict[str, str]]:
        """The messages with each content as one text, in which `image` stands for an image."""
        return [
            {"role": message["role"], "content": content_text(message["content"], image)}
            for message in self.messages()
        ]


def content_text(content: str | Sequence[dict[str, str]], image: str) -> str:
    """What the chat template makes of a message's content."""
    if isinstance(content, str):
        return content.strip()
    images = "".join(f"{image}\n" for part in content if part["type"] == "image")
    return (images + "".join(p["text"] for p in content if p["type"] == "text")).strip()


def _about_several(rng: Random, scenes: Sequence[Scene]) -> Asked:
    """What is in the second picture?"""
    index = rng.randrange(min(len(scenes), len(_ORDINALS)))
    which = f"[the {_ORDINALS[index]} [picture|image|one]|[picture|image] {index + 1}]"
    pattern = f"[what is in|what was in|what is on|describe|and|tell me about|caption] {which}"
    return Asked("one of several", sentence(rng, pattern), description(scenes[index]))


def _about_new(rng: Random, scene: Scene) -> Asked:
    """A question that comes with an image, or no text, which asks for a description."""
    if rng.random() < 0.03:
        return Asked("description", "", description(scene))
    return question(rng, scene)


def _off_topic(rng: Random, *, has_image: bool) -> Asked:
    return small_talk(rng, has_image=has_image) if rng.random() < 0.7 else out_of_place(rng)


def _without_images(rng: Random) -> Iterator[Turn]:
    for _ in range(rng.choice((1, 1, 2, 3))):
        makers: tuple[tuple[Callable[[], Asked], float], ...] = (
            (lambda: small_talk(rng, has_image=False), 4),
            (lambda: out_of_place(rng), 2),
            (lambda: without_image(rng), 3),
        )
        yield Turn(rng.choices([m for m, _ in makers], [weight for _, weight in makers])[0]())


def _with_images(rng: Random) -> Iterator[Turn]:
    if rng.random() < 0.1:
        yield Turn(_off_topic(rng, has_image=False) if rng.random() < 0.7 else without_image(rng))
    scenes = [random_scene(rng)]
    yield Turn(_about_new(rng, scenes[0]), (scenes[0],))
    for _ in range(rng.choices(tuple(_MORE), tuple(_MORE.values()))[0]):
        kind = rng.random()
        if kind < 0.05 and len(scenes) < len(_ORDINALS):
            scenes.append(random_scene(rng))
            yield Turn(_about_new(rng, scenes[-1]), (scenes[-1],))
        elif kind < 0.12:
            yield Turn(_off_topic(rng, has_image=True))
        elif kind < 0.3 and len(scenes) > 1:
            yield Turn(_about_several(rng, scenes))
        else:
            yield Turn(question(rng, scenes[-1]))


def dialogue(rng: Random) -> Dialogue:
    """One made-up chat, mostly about an image."""
    system = rng.choice(_SYSTEMS) if rng.random() < 0.1 else ""
    turns = _without_images(rng) if rng.random() < 0.12 else _with_images(rng)
    return Dialogue(tuple(turns), system)


def dialogues(seed: int, count: int) -> Iterator[Dialogue]:
    """`count` dialogues, the same ones for the same seed."""
    rng = Random(seed)
    for _ in range(count):
        yield dialogue(rng)
