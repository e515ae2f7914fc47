"""Loads the images of a conversation for one model."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from mrs.architecture.vision_spec import ImageLayout
from mrs.media.image_processors import PreparedImage, prepare_image
from mrs.media.open_image import DecodedImage, open_image
from mrs.request import Message

#: Prepared images that are cached for the next request of a conversation.
_CACHED_IMAGES = 16


class ImageLoader:
    """Opens images and runs the model's image processor on them.

    Images of earlier requests are opened again, but not processed again. Images whose longer edge
    exceeds `max_edge` pixels are scaled down first.
    """

    def __init__(self, layout: ImageLayout, max_edge: int | None = None) -> None:
        self._layout = layout
        self._max_edge = max_edge
        self._prepared: OrderedDict[int, PreparedImage] = OrderedDict()

    def load(self, messages: Sequence[Message]) -> list[PreparedImage]:
        """All images of a conversation in order. Raises NotReadable for an unusable one."""
        sources = [source for message in messages for source in message.get("images", ())]
        return [self._prepare(open_image(source)) for source in sources]

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
