"""What a sequence shows beside its text, known by hashes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class MediaHashes:
    """Hashes of a sequence's images, audios and videos, each in order."""

    images: tuple[int, ...] = ()
    audios: tuple[int, ...] = ()
    videos: tuple[int, ...] = ()

    @staticmethod
    def of(
        images: Sequence[int] | None, audios: Sequence[int] | None, videos: Sequence[int] | None
    ) -> MediaHashes:
        return MediaHashes(tuple(images or ()), tuple(audios or ()), tuple(videos or ()))

    def agrees_with(self, other: MediaHashes) -> bool:
        """Whether nothing differs as far as both go.

        Placeholder tokens are alike whatever they stand for, so equal tokens prove nothing.
        """
        return all(
            a[: len(b)] == b[: len(a)]
            for a, b in (
                (self.images, other.images),
                (self.audios, other.audios),
                (self.videos, other.videos),
            )
        )
