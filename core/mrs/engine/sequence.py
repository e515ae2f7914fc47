"""One reply while it is made."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

from mrs.cache.sequence import SequenceCache
from mrs.engine.multimodal import ShownImage
from mrs.engine.sampling.sampler import Choice, Sampler
from mrs.events import FinishReason

#: Gets each token as it is chosen; returns whether the reply ends with it.
Take = Callable[[Choice], bool]


@dataclass(eq=False)
class Generation:
    """A prompt and the tokens chosen after it, in `ids`.

    The first `fed` of them are in `cache`, which is None while there is none. `most_ids` is where
    the reply ends at the latest. The cache's state after the first `checkpoint` tokens is worth
    remembering. `cached_tokens` of the prompt did not have to be computed. `images` are shown in
    the prompt. `is_shared` says that it was fed together with others.
    `reason` is set when the reply is over; `error` says what ended it instead.
    """

    ids: list[int]
    most_ids: int
    sampler: Sampler
    take: Take
    prompt_tokens: int
    images: tuple[ShownImage, ...] = ()
    cache: SequenceCache | None = None
    fed: int = 0
    era: Hashable = None
    checkpoint: int = 0
    cached_tokens: int = 0
    is_shared: bool = False
    is_cancelled: bool = False
    reason: FinishReason | None = None
    error: Exception | None = None

    @property
    def is_over(self) -> bool:
        return self.reason is not None

    @property
    def is_decoding(self) -> bool:
        """Whether a single token stands between it and the next."""
        return self.fed == len(self.ids) - 1 and self.fed > 0

    @property
    def is_reading(self) -> bool:
        """Whether a part of its prompt is in its cache and a part is not."""
        return 0 < self.fed < self.prompt_tokens

    @property
    def keys(self) -> list[int]:
        """`ids` with what no other image has in the place of each image's tokens.

        The tokens of an image are alike whatever it shows: what is remembered of them is not.
        """
        if not self.images:
            return self.ids
        keys = list(self.ids)
        for image in self.images:
            for position in image.positions:
                keys[position] = image.key
        return keys

    @property
    def new_tokens(self) -> int:
        return len(self.ids) - self.prompt_tokens

    def cancel(self) -> None:
        """Let the engine stop it before its next step."""
        self.is_cancelled = True
