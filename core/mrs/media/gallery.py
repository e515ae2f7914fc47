"""The pictures of a conversation, prepared for one model."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from mrs.architecture.vision_spec import ImageLayout
from mrs.media.open import Picture, open_picture
from mrs.media.prepare import PreparedImage, prepare
from mrs.request import Message

#: Prepared pictures that are kept for the next turn.
_KEPT = 16


class Gallery:
    """Opens and prepares pictures; those of past turns are opened again, but not prepared.

    With `max_edge` larger ones are made smaller first.
    """

    def __init__(self, layout: ImageLayout, max_edge: int | None = None) -> None:
        self._layout = layout
        self._max_edge = max_edge
        self._prepared: OrderedDict[int, PreparedImage] = OrderedDict()

    def of(self, messages: Sequence[Message]) -> list[PreparedImage]:
        """Every picture of a conversation, in order. Raises MrsError for one that is bad."""
        sources = [source for message in messages for source in message.get("images", ())]
        return [self._prepare(open_picture(source)) for source in sources]

    def _prepare(self, picture: Picture) -> PreparedImage:
        if picture.digest not in self._prepared:
            image = picture.image
            if self._max_edge is not None and max(image.size) > self._max_edge:
                image = image.copy()
                image.thumbnail((self._max_edge, self._max_edge))
            prepared = prepare(self._layout, image, picture.digest)
            self._prepared[picture.digest] = prepared
            if len(self._prepared) > _KEPT:
                self._prepared.popitem(last=False)
        self._prepared.move_to_end(picture.digest)
        return self._prepared[picture.digest]
