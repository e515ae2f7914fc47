"""What turns pictures into rows of a language model, in numbers.

A tower looks at patches, a projector maps what it saw onto the language model's width, and a
layout says into which pixels and how many rows a picture of some size turns. All are small frozen
values, and none needs torch: the planner counts with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from mrs.architecture.layers import Layer


@dataclass(frozen=True)
class ImageShape:
    """What a picture becomes.

    `pixels` is the shape of the tensor that the tower takes, `patches` how many patches it sees
    there, padding included; the layout's own `grid` counts tiles or patches. `rows` are the rows
    of the language model that the picture's features fill; in `text` as many image tokens stand
    among what else surrounds them in the prompt. Where layers of their own look at the features,
    there are `keys` of these.
    """

    pixels: tuple[int, ...]
    patches: int
    rows: int
    text: str
    grid: tuple[int, ...] = ()
    keys: int = 0


@dataclass(frozen=True)
class PixelScale:
    """From bytes to a tower's numbers: (byte * factor - mean) / std, for each channel."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    factor: float = 1 / 255


class ImageLayout(Protocol):
    """How pictures are cut, scaled and spelled; `mrs.media.prepare` has an entry for each kind."""

    @property
    def scale(self) -> PixelScale: ...

    @property
    def is_resizable(self) -> bool:
        """Whether a smaller picture takes fewer rows, so that `--max-edge` means something."""

    def shape(self, height: int, width: int) -> ImageShape:
        """What a picture of this size becomes."""

    def largest(self, edge: int) -> ImageShape:
        """What takes most rows and patches of all pictures with no edge longer than `edge`."""


@dataclass(frozen=True)
class Patches:
    """Non-overlapping square patches, each mapped to a vector by one product.

    Towers for films map as many `frames` together; a picture is each of them.
    """

    size: int
    channels: int = 3
    bias: bool = False
    frames: int = 1

    @property
    def numbers(self) -> int:
        return self.channels * self.frames * self.size**2


class Tower(Protocol):
    """What looks at pixels: a frozen value, with slots of its own and stacks of layers."""

    @property
    def hidden_size(self) -> int: ...

    @property
    def output_size(self) -> int:
        """Numbers of each patch that go to the projector."""

    @property
    def stacks(self) -> Mapping[str, tuple[Layer, ...]]:
        """Layers by the slot that starts their parts' names: `layer` where there is one stack."""


class Projector(Protocol):
    """What maps features onto the language model: a frozen value, with slots of its own."""


@dataclass(frozen=True)
class Vision:
    """The part of a model that sees.

    `placeholder` is what stands for one picture in a rendered prompt, `image_token_id` the token
    at which a row of features stands. Features take the place of embeddings, or with
    `enters == "cross_attention"` are looked at by layers of their own. Where the rows of one
    picture see each other, before and behind, `is_bidirectional`; `positions` tells whether they
    are numbered one after another or by place in the picture, where a shape's `grid` counts
    rows and columns of features.
    """

    tower: Tower
    projector: Projector
    layout: ImageLayout
    placeholder: str
    image_token_id: int
    enters: Literal["embeddings", "cross_attention"] = "embeddings"
    is_bidirectional: bool = False
    positions: Literal["plain", "multimodal"] = "plain"
