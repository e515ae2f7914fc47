"""A prompt that is ready for the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mrs.engine.image_input import ImageInput


@dataclass(frozen=True)
class Prompt:
    """The token ids of a prompt, and its images at their positions.

    `opening` is text of the reply that the prompt already has.
    """

    ids: Sequence[int]
    opening: str = ""
    images: Sequence[ImageInput] = ()
