"""The memory of images, videos and audio files while they are opened, and of decoded images."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mrs.media.image_source import singular, unreadable
from mrs.media.lru_cache import LruCache
from mrs.process.memory_room import MemoryRoom
from mrs.request import Media

if TYPE_CHECKING:
    from mrs.media.decoded_image import DecodedImage, ImageLimits

#: Of decoded images; a server may remember fewer.
REMEMBERED_BYTES = 64 * 2**20
_WAIT_S = 20.0


class MediaMemory:
    """The memory that media share, such as those of all models of a server; unlimited at first.

    `room` is that of images and videos which are decoded, and then resized by the same thread.
    `decoded` remembers images by the digests of their files.
    """

    def __init__(self) -> None:
        self.room = MemoryRoom()
        self.decoded: LruCache[tuple[bytes, ImageLimits], DecodedImage] = LruCache(REMEMBERED_BYTES)
        #: The room that each thread has taken.
        self._thread = threading.local()

    @contextmanager
    def decoding(self) -> Iterator[None]:
        """Until the end of this, the thread keeps the room of its last image for what it makes of
        it.

        Each image has its room instead of that of the one before, so that no thread waits for room
        while it has some.
        """
        thread = self._thread
        thread.depth = getattr(thread, "depth", 0) + 1
        try:
            yield
        finally:
            thread.depth -= 1
            if not thread.depth:
                self._give_back()

    def take(self, media: Media, size_bytes: int) -> None:
        """Within `decoding`, take the room to decode an image or a video.

        Raises NotReadable if it needs too much, and NoRoom if others have the room.
        """
        if not self.room.fits(size_bytes):
            reason = f"to decode it takes more memory than there is for {singular(media.kind)}s"
            hint = "cut it" if media.kind == "audio" else "scale it down"
            raise unreadable(media.name, reason, hint, media.kind)
        self._give_back()
        self.room.take(size_bytes, f"{singular(media.kind)}s", _WAIT_S)
        self._thread.size_bytes = size_bytes

    def _give_back(self) -> None:
        if size_bytes := getattr(self._thread, "size_bytes", 0):
            self._thread.size_bytes = 0
            self.room.give_back(size_bytes)
