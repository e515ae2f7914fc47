"""Images of few pixels, and tokens of images that are not there, have logits in every family."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from vision_running import Conversation

from mrs.architecture.vision_spec import MAX_ASPECT_RATIO

if TYPE_CHECKING:
    from vision_reference import VisionReference
    from vision_running import LoadedVisionModel


@pytest.mark.values
@pytest.mark.parametrize("size", [(1, 1), (1, MAX_ASPECT_RATIO)])
def test_an_image_of_few_pixels_has_logits(
    truth: VisionReference, model: LoadedVisionModel, size: tuple[int, int]
) -> None:
    ids, images = model.shown("a {} b", [truth.show(*size)])
    logits = Conversation(model).feed(ids, images)
    assert bool(torch.isfinite(logits).all())
    assert len(logits) == len(ids)


def test_tokens_of_images_that_are_not_there_have_logits(model: LoadedVisionModel) -> None:
    """A prompt that is completed as it is may have any token; positions do not come from it."""
    vision = model.vision
    videos = [] if vision.video is None else [vision.video.token_id]
    ids = [*model.ids("a", []), *[vision.image_token_id] * 5, *videos, *model.ids("b", [])]
    logits = Conversation(model).feed(ids)
    assert bool(torch.isfinite(logits).all())
    assert len(logits) == len(ids)
