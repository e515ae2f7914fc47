"""What preparing pictures is made of: colours, sizes, and numbers."""

from __future__ import annotations

import numpy as np
import torch
from PIL.Image import Image, Resampling, alpha_composite, new
from torch import Tensor

from mrs.architecture.vision_spec import PixelScale
from mrs.media.strips import changed


def to_rgb(image: Image) -> Image:
    """Three channels; what is transparent lets white through."""
    if "A" in image.getbands():
        return changed(image, "RGB", _on_white)
    return image if image.mode == "RGB" else image.convert("RGB")


def _on_white(image: Image) -> Image:
    return alpha_composite(new("RGBA", image.size, "white"), image.convert("RGBA")).convert("RGB")


def resize(image: Image, height: int, width: int, resampling: str) -> Image:
    """The picture at another size; `resampling` is the name of one of Pillow's filters."""
    if image.size == (width, height):
        return image
    return image.resize((width, height), Resampling[resampling.upper()])


def crop_middle(image: Image, height: int, width: int) -> Image:
    """The middle of a picture, with black around it where it is smaller."""
    top = (
        (image.height - height) // 2
        if image.height >= height
        else -((height - image.height + 1) // 2)
    )
    left = (image.width - width) // 2 if image.width >= width else -((width - image.width + 1) // 2)
    return image.crop((left, top, left + width, top + height))


def pad(
    image: Image, height: int, width: int, *, top: int, left: int, colour: str = "black"
) -> Image:
    """A canvas of one colour with the picture on it, `top` rows down and `left` columns in."""
    canvas = new(image.mode, (width, height), colour)
    canvas.paste(image, (left, top))
    return canvas


def to_numbers(image: Image, scale: PixelScale) -> Tensor:
    """(3, height, width) float32 of an RGB picture."""
    numbers = torch.from_numpy(np.array(image, dtype=np.float32)).mul_(scale.factor)
    numbers = numbers.sub_(torch.tensor(scale.mean)).div_(torch.tensor(scale.std))
    return numbers.permute(2, 0, 1).contiguous()
