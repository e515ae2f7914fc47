"""Loads the images and videos of a conversation for one model."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from mrs.architecture.vision_spec import ImageLayout, VideoLayout
from mrs.errors import Unsupported
from mrs.media.image_processors import Prepared, PreparedImage, prepare_image
from mrs.media.image_source import image_name
from mrs.media.lru_cache import LruCache
from mrs.media.open_image import DecodedImage, open_image
from mrs.media.open_media import read_video
from mrs.media.video_frames import prepare_video
from mrs.media.video_names import names_video
from mrs.request import Message

#: Prepared images that are cached for the next request of a conversation, and bytes of videos.
_CACHED_IMAGES = 16
_CACHED_VIDEO_BYTES = 512 * 2**20


@dataclass(frozen=True)
class PreparedMedia:
    """An image, or a video as several of them, and the `text` that the prompt has for it."""

    images: tuple[Prepared, ...]
    text: str
    is_video: bool = False


class MediaLoader:
    """Opens images and videos, and runs the model's processors on them.

    Those of earlier requests are opened again, but not processed again. Images whose longer edge
    exceeds `max_edge` pixels are scaled down first. A model without a layout of videos takes none.
    """

    def __init__(
        self, layout: ImageLayout, max_edge: int | None = None, video: VideoLayout | None = None
    ) -> None:
        self._layout = layout
        self._video = video
        self._max_edge = max_edge
        self._prepared: OrderedDict[int, PreparedImage] = OrderedDict()
        self._videos: LruCache[bytes, PreparedMedia] = LruCache(_CACHED_VIDEO_BYTES)

    def load(self, messages: Sequence[Message]) -> list[PreparedMedia]:
        """All of a conversation in order.

        Raises NotReadable for an unusable one, and Unsupported for a video that the model, or this
        installation, cannot take.
        """
        sources = [source for message in messages for source in message.get("images", ())]
        return [self._load(source) for source in sources]

    def _load(self, source: str) -> PreparedMedia:
        if names_video(source):
            return self._load_video(source)
        image = self._prepare(open_image(source))
        return PreparedMedia((image,), image.shape.text)

    def _load_video(self, source: str) -> PreparedMedia:
        if self._video is None:
            raise Unsupported(
                "this model takes no videos",
                where=image_name(source),
                hint="give images of it, or use a model of the Qwen-VL families",
            )
        content = read_video(source)
        key = hashlib.sha256(content).digest()
        if (cached := self._videos.get(key)) is not None:
            return cached
        images, text = prepare_video(self._video, source, content, self._max_edge)
        media = PreparedMedia(tuple(images), text, is_video=True)
        size_bytes = sum(prod(image.shape.pixels) for image in images)
        self._videos.put(key, media, size_bytes=size_bytes)
        return media

    def _prepare(self, decoded: DecodedImage) -> PreparedImage:
        if decoded.digest not in self._prepared:
            image = decoded.image
            if self._max_edge is not None and max(image.size) > self._max_edge:
                image = image.copy()
                image.thumbnail((self._max_edge, self._max_edge))
            prepared = prepare_image(self._layout, image, decoded.digest)
            self._prepared[decoded.digest] = prepared
            if len(self._prepared) > _CACHED_IMAGES:
                self._prepared.popitem(last=False)
        self._prepared.move_to_end(decoded.digest)
        return self._prepared[decoded.digest]
