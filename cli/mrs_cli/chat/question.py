"""A question to the model, with its images and files."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mrs.request import IMAGE_MARK, Media, text_of
from mrs_cli.chat.chat_images import as_typed, image_names, names_of_files, read_named_images
from mrs_cli.chat.chat_message import ChatMessage, TextFile
from mrs_cli.chat.image_paths import find_image_paths


@dataclass(frozen=True)
class Question:
    """What a person asks; `text` has an IMAGE_MARK for each of `images`, and `files` go with it.

    While it `is_typed`, `text` is what a person typed: it has no marks yet, and may name further
    images by path or address, `missing` of which are not there. Names of `known` images mean
    these. With `replacing`, the question and its reply replace the last turn. `unseen` are names of
    files that are there, for a model that reads neither images nor videos.
    """

    text: str
    images: tuple[Media, ...] = ()
    is_typed: bool = False
    known: tuple[Media, ...] = ()
    replacing: bool = False
    missing: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()
    files: tuple[TextFile, ...] = ()

    @classmethod
    def of_message(cls, message: ChatMessage, *, replacing: bool = False) -> Question:
        images, files = tuple(message.get("images", ())), tuple(message.get("files", ()))
        return cls(text_of(message), images, replacing=replacing, files=files)

    @property
    def typed(self) -> str:
        """The question as a person would type it."""
        return as_typed(self.text, self.images)

    @property
    def message(self) -> ChatMessage:
        message: ChatMessage = {"role": "user", "content": self.text}
        if self.images:
            message["images"] = list(self.images)
        if self.files:
            message["files"] = list(self.files)
        return message

    def with_images_read(self) -> Question:
        """The question with the images that its text names. Raises NotReadable."""
        if not self.is_typed:
            return self
        named = read_named_images(self.text, self.known)
        images = (*self.images, *named.images)
        text = f"{IMAGE_MARK * len(images)}{named.rest.strip()}" if images else named.rest
        return replace(self, text=text, images=images, is_typed=False, missing=named.missing)

    def without_images_read(self) -> Question:
        """The question as it is, for a model without vision."""
        if not self.is_typed:
            return self
        return replace(self, is_typed=False, unseen=names_of_files(self.text))

    def with_text(self, text: str) -> Question:
        """What a person typed instead of this question; it may name the same images.

        The files stay.
        """
        known = (*self.images, *self.known)
        return Question(
            text, is_typed=True, known=known, replacing=self.replacing, files=self.files
        )

    def reworded(self, text: str) -> Question:
        """Another text for the same images, unless the text names images itself."""
        changed = self.with_text(text)
        if find_image_paths(text, image_names(changed.known)).sources:
            return changed
        return replace(changed, images=changed.known, known=())
