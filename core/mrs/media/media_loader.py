"""Loads the images and videos of a conversation for one model."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from mrs.architecture.vision_spec import ImageLayout, VideoLayout
from mrs.errors import NoRoom, Unsupported, UsageError
from mrs.media.decoded_image import DecodedImage
from mrs.media.image_processors import Prepared, PreparedImage, prepare_image
from mrs.media.image_source import image_name
from mrs.media.lru_cache import LruCache
from mrs.media.media_memory import MediaMemory
from mrs.media.open_image import open_image
from mrs.media.video_file import DEFAULT_VIDEO_LIMITS
from mrs.media.video_frames import prepare_video
from mrs.process.memory_room import MemoryRoom
from mrs.request import Media, MediaKind, Message

#: Prepared images that are cached for the next request of a conversation, and bytes of videos.
_CACHED_IMAGES = 16
_CACHED_VIDEO_BYTES = 512 * 2**20
_VIDEO_SHARE = 0.5
#: Of float32.
_VALUE_BYTES = 4


@dataclass(frozen=True)
class PreparedMedia:
    """An image, or a video as several of them, and the `text` that the prompt has for it."""

    images: tuple[Prepared, ...]
    text: str
    is_video: bool = False


class MediaLoader:
    """Opens images and videos, and runs the model's processors on them.

    Images of earlier requests are opened again, but not processed again. Those whose longer edge
    exceeds `max_edge` pixels are scaled down first. A model without a layout of videos takes none.
    All that are in use or cached have at most `most_bytes` for the model, and `memory` while they
    are opened.
    """

    def __init__(
        self,
        layout: ImageLayout,
        max_edge: int | None = None,
        video: VideoLayout | None = None,
        most_bytes: int | None = None,
        memory: MediaMemory | None = None,
    ) -> None:
        self._memory = memory or MediaMemory()
        self._layout = layout
        self._video = video
        self._max_edge = max_edge
        self._prepared: OrderedDict[int, PreparedImage] = OrderedDict()
        self._lock = threading.Lock()
        self._room = MemoryRoom(most_bytes)
        self._video_limits = DEFAULT_VIDEO_LIMITS
        cached = _CACHED_VIDEO_BYTES
        if most_bytes is not None:
            cached = min(cached, int(_VIDEO_SHARE * most_bytes))
            used = min(DEFAULT_VIDEO_LIMITS.used_bytes, cached)
            self._video_limits = replace(DEFAULT_VIDEO_LIMITS, used_bytes=used)
        self._videos: LruCache[bytes, PreparedMedia] = LruCache(cached)

    def load(self, messages: Sequence[Message]) -> list[PreparedMedia]:
        """All of a conversation in order.

        Raises NotReadable for an unusable one, and Unsupported for a video that the model, or this
        installation, cannot take.
        """
        prepared: list[PreparedMedia] = []
        before_bytes = 0
        for media in (media for message in messages for media in message.get("images", ())):
            load = self._load_video if media.kind == "video" else self._load_image
            prepared.append(load(media, before_bytes))
            before_bytes += sum(map(_size_bytes, prepared[-1].images))
        return prepared

    def check_kind(self, kind: MediaKind, name: str) -> None:
        """Raise Unsupported for a video, by its path or address, if the model takes none."""
        if kind == "video" and self._video is None:
            raise Unsupported(
                "this model takes no videos",
                where=image_name(name),
                hint="give images of it, or use a model of the Qwen-VL families",
            )

    def _load_image(self, media: Media, before_bytes: int) -> PreparedMedia:
        """An image; those before it in the conversation have `before_bytes`."""
        with self._memory.decoding():
            image = self._prepare(open_image(media, self._memory), before_bytes)
        return PreparedMedia((image,), image.shape.text)

    def _load_video(self, video: Media, before_bytes: int) -> PreparedMedia:
        self.check_kind("video", video.name)
        assert self._video is not None
        if (cached := self._videos.get(video.digest)) is not None:
            return cached
        images, text = prepare_video(
            self._video, video, self._memory, self._max_edge, self._video_limits
        )
        media = PreparedMedia(tuple(images), text, is_video=True)
        size_bytes = sum(map(_size_bytes, images))
        self._take_room(size_bytes, before_bytes)
        for image in images:
            self._room.give_back_with(image, _size_bytes(image))
        self._videos.put(video.digest, media, size_bytes=size_bytes)
        return media

    def _prepare(self, decoded: DecodedImage, before_bytes: int) -> PreparedImage:
        with self._lock:
            if (cached := self._prepared.get(decoded.digest)) is not None:
                self._prepared.move_to_end(decoded.digest)
                return cached
        image = decoded.image
        if self._max_edge is not None and max(image.size) > self._max_edge:
            image = image.copy()
            image.thumbnail((self._max_edge, self._max_edge))
        size_bytes = _VALUE_BYTES * prod(self._layout.shape(image.height, image.width).pixels)
        self._take_room(size_bytes, before_bytes)
        try:
            prepared = prepare_image(self._layout, image, decoded.digest)
        except BaseException:
            self._room.give_back(size_bytes)
            raise
        self._room.give_back_with(prepared, size_bytes)
        with self._lock:
            self._prepared[decoded.digest] = prepared
            if len(self._prepared) > _CACHED_IMAGES:
                self._prepared.popitem(last=False)
        return prepared

    def _take_room(self, size_bytes: int, before_bytes: int) -> None:
        """Forget cached images for a new one, if necessary.

        Raises UsageError if the conversation's images together need too much, or else NoRoom.
        """
        if not self._room.fits(before_bytes + size_bytes):
            raise UsageError(
                "the images need more memory than there is for those of one request",
                hint="send fewer",
            )
        while True:
            try:
                return self._room.take(size_bytes, "images")
            except NoRoom:
                with self._lock:
                    if not self._prepared:
                        raise
                    self._prepared.popitem(last=False)


def _size_bytes(image: Prepared) -> int:
    """What it takes: pixels in float32, or the bytes of frames."""
    per_value = _VALUE_BYTES if isinstance(image, PreparedImage) else 1
    return per_value * prod(image.shape.pixels)
