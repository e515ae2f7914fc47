"""A question to the model, with its images."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mrs.request import IMAGE_MARK, Media, Message, text_of
from mrs_cli.chat.chat_images import as_typed, image_names, read_named_images
from mrs_cli.chat.image_paths import find_image_paths


@dataclass(frozen=True)
class Question:
    """What a person asks; `text` has an IMAGE_MARK for each of `images`.

    While it `is_typed`, `text` is what a person typed: it has no marks yet, and may name further
    images by path or address, `missing` of which are not there. Names of `known` images mean
    these. With `replacing`, the question and its reply replace the last turn.
    """

    text: str
    images: tuple[Media, ...] = ()
    is_typed: bool = False
    known: tuple[Media, ...] = ()
    replacing: bool = False
    missing: tuple[str, ...] = ()

    @classmethod
    def of_message(cls, message: Message, *, replacing: bool = False) -> Question:
        return cls(text_of(message), tuple(message.get("images", ())), replacing=replacing)

    @property
    def typed(self) -> str:
        """The question as a person would type it."""
        return as_typed(self.text, self.images)

    @property
    def message(self) -> Message:
        if not self.images:
            return {"role": "user", "content": self.text}
        return {"role": "user", "content": self.text, "images": list(self.images)}

    def with_images_read(self) -> Question:
        """The question with the images that its text names. Raises NotReadable."""
        if not self.is_typed:
            return self
        named = read_named_images(self.text, self.known)
        images = (*self.images, *named.images)
        text = f"{IMAGE_MARK * len(images)}{named.rest.strip()}" if images else named.rest
        return replace(self, text=text, images=images, is_typed=False, missing=named.missing)

    def with_text(self, text: str) -> Question:
        """What a person typed instead of this question; it may name the same images."""
        known = (*self.images, *self.known)
        return Question(text, is_typed=True, known=known, replacing=self.replacing)

    def reworded(self, text: str) -> Question:
        """Another text for the same images, unless the text names images itself."""
        changed = self.with_text(text)
        if find_image_paths(text, image_names(changed.known)).sources:
            return changed
        return replace(changed, images=changed.known, known=())
