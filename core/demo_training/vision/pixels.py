"""From an image to the numbers that the vision tower reads, as CLIP does it."""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image
from torch import Tensor

# The mean and the deviation of each channel in CLIP's training images.
MEAN = (0.48145466, 0.4578275, 0.40821073)
DEVIATION = (0.26862954, 0.26130258, 0.27577711)


def pixels(image: Image.Image, side: int) -> Tensor:
    """(3, side, side): the image's middle square, normalized channel by channel."""
    scale = side / min(image.size)
    width, height = (side if edge == min(image.size) else int(edge * scale) for edge in image.size)
    resized = image.convert("RGB").resize((width, height), Image.Resampling.BICUBIC)
    left, top = (width - side) // 2, (height - side) // 2
    cropped = np.asarray(resized.crop((left, top, left + side, top + side)), dtype=np.float32)
    mean, deviation = (np.array(each, dtype=np.float32) for each in (MEAN, DEVIATION))
    values = (cropped / 255 - mean) / deviation
    return torch.from_numpy(values).permute(2, 0, 1).contiguous()
