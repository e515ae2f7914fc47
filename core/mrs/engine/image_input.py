"""The images of a prompt, and their positions in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mrs.architecture.vision_spec import Vision
from mrs.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor

    from mrs.media.image_processors import Prepared


@dataclass(eq=False)
class ImageInput:
    """An image, and the `positions` of the prompt that its features fill, in order.

    The tokens of an `undivided` range attend to each other in both directions, so one step has to
    compute them together. `features` (rows, hidden) are cached from the step that computes the
    first of the positions to the one that computes the last.
    """

    image: Prepared
    positions: Sequence[int]
    undivided: tuple[range, ...] = ()
    features: Tensor | None = None

    @property
    def key(self) -> int:
        """A negative number, which differs from all token ids and other images."""
        return -1 - self.image.digest

    @property
    def offset(self) -> int:
        """Rotary position minus token position of the text after the image.

        The text goes on after the image's last row or column of features, whichever is larger,
        or where its shape says.
        """
        shape = self.image.shape
        return (max(shape.grid) if shape.span is None else shape.span) - shape.rows

    def overlaps(self, chunk: range) -> bool:
        return self.positions[0] < chunk.stop and self.positions[-1] >= chunk.start


def place_images(
    vision: Vision, prompt_ids: Sequence[int], images: Sequence[Prepared]
) -> list[ImageInput]:
    """Each image at as many image tokens of the prompt as it has rows of features.

    Raises UsageError if the prompt has more or fewer image tokens.
    """
    tokens = {vision.image_token_id} | ({vision.video.token_id} if vision.video else set())
    positions = [at for at, token in enumerate(prompt_ids) if token in tokens]
    wanted = sum(image.shape.rows for image in images)
    if len(positions) != wanted:
        kind, files = ("audio", "audio") if vision.audio_layout else ("image", "images")
        raise UsageError(
            f"the prompt has {len(positions)} {kind} tokens, but its {files} need {wanted}",
            hint=f"the chat template may not support {files}: give another one with -c FILE",
        )
    placed, start = [], 0
    for image in images:
        end = start + image.shape.rows
        own = positions[start:end]
        placed.append(ImageInput(image, own, _ranges(own) if vision.is_bidirectional else ()))
        start = end
    return placed


def chunk_end(images: Sequence[ImageInput], end: int, *, start: int = -1) -> int:
    """Where to end a chunk of tokens that begins at `start` and should end at about `end`.

    An undivided range stays whole: the chunk ends before it or, if it begins with it, after it.
    """
    for span in (span for image in images for span in image.undivided):
        if span.start < end < span.stop:
            return span.start if span.start > start else span.stop
    return end


def _ranges(positions: Sequence[int]) -> tuple[range, ...]:
    """The ranges of consecutive positions."""
    starts = [
        at for at in range(len(positions)) if at == 0 or positions[at] != positions[at - 1] + 1
    ]
    ends = [*starts[1:], len(positions)]
    return tuple(
        range(positions[start], positions[end - 1] + 1)
        for start, end in zip(starts, ends, strict=True)
    )
