"""Media of a conversation: they are read once, and keep the name they came by."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mrs.media import audio_file, read_media
from mrs.media.image_source import image_name, is_data, singular
from mrs.media.media_memory import MediaMemory
from mrs.media.open_image import open_image
from mrs.media.video_file import read_facts
from mrs.request import IMAGE_MARK, Media, MediaKind, Message, text_of
from mrs_cli.chat.image_paths import find_image_paths, spelled


def read_image(source: str) -> Media:
    """The file at a path or an address. Raises NotReadable, also if it is damaged."""
    return _checked(read_media.read_media(source))


def read_given_video(source: str) -> Media:
    """The video at a path or an address, whatever its name is. Raises NotReadable."""
    return _checked(read_media.read_video(source))


def read_given_audio(source: str) -> Media:
    """The audio file at a path or an address, whatever its name is. Raises NotReadable."""
    return _checked(read_media.read_audio(source))


@dataclass(frozen=True)
class NamedImages:
    """The images that a text names, the text without their names, and names of missing files."""

    rest: str
    images: tuple[Media, ...]
    missing: tuple[str, ...]


def read_named_images(text: str, known: Sequence[Media] = ()) -> NamedImages:
    """The images that a text names. Raises NotReadable for one that is there.

    The name of an image in `known` means that image.
    """
    by_name = {_name(image): image for image in known}
    found = find_image_paths(text, by_name.keys(), _is_there)
    images = tuple(by_name.get(source) or read_image(source) for source in found.sources)
    return NamedImages(found.rest, images, found.missing)


def names_of_files(text: str) -> tuple[str, ...]:
    """The paths of images and videos in a text that are there; addresses are not among them."""
    found = find_image_paths(
        text, is_there=lambda source: "://" not in source and _is_there(source)
    )
    return found.sources


def _is_there(source: str) -> bool:
    """Whether a path exists; an address is taken to."""
    # Those of pathlib raise OSError for a name that is too long.
    return "://" in source or os.path.lexists(os.path.expanduser(source))  # noqa: PTH111


def without_files(names: Sequence[str]) -> str:
    """What a person is told of names of missing files."""
    return f"there is no file {' and no file '.join(names)}: the question was sent as it is"


def unseen_files(names: Sequence[str]) -> str:
    """What a person is told of files whose content the model cannot see."""
    return f"the model reads no images: of {', '.join(names)} it sees the name only"


def as_typed(text: str, images: Sequence[Media]) -> str:
    """What a person would type to get `text` with `images`, if these are known."""
    if not images:
        return text
    names = [spelled(_name(image)) for image in images]
    return " ".join([*names, text.replace(IMAGE_MARK, "")]).strip()


def image_names(images: Sequence[Media]) -> set[str]:
    return set(map(_name, images))


def described(images: Sequence[Media]) -> str:
    """A line for each file: its name, its size in pixels and its length."""
    return "\n".join(f"\u25a3 {image_name(each.name)} {_size(each)}" for each in images)


def _size(media: Media) -> str:
    """Raises NotReadable for a file that is damaged."""
    if media.kind == "video":
        facts = read_facts(media, MediaMemory())
        return f"{facts.width}\u00d7{facts.height}, {facts.seconds:.1f} s"
    if media.kind == "audio":
        seconds = audio_file.read_facts(media).seconds
        return f"{seconds:.1f} s" if seconds else "of unknown length"
    image = open_image(media).image
    return f"{image.width}\u00d7{image.height}"


def _checked(media: Media) -> Media:
    """What can be opened, before the model is asked about it."""
    _size(media)
    return media


def too_many_images(count: int, planned: int, kind: MediaKind = "image") -> str:
    """The warning about a conversation with more images, or audio files, than planned."""
    files = singular("audio" if kind == "audio" else "image")
    return (
        f"the conversation has {count} {files}s, but the plan counted on {planned}: "
        f"add --max-num-images {count}"
    )


def has_videos(messages: Sequence[Message]) -> bool:
    return any(media.kind == "video" for each in messages for media in each.get("images", ()))


def count_images(messages: Sequence[Message]) -> int:
    return sum(len(message.get("images", ())) for message in messages)


def without_images(message: Message) -> Message:
    """The message for a model without vision."""
    if not message.get("images"):
        return message
    rest = message.copy()
    del rest["images"]
    return {**rest, "content": text_of(message).replace(IMAGE_MARK, "")}


def with_image_names(message: Message) -> Mapping[str, Any]:
    """The message with names in place of the images' content."""
    if not message.get("images"):
        return message
    return {**message, "images": [image_name(image.name) for image in message["images"]]}


def _name(image: Media) -> str:
    """What a person may type for a known image."""
    name = image.name
    can_be_quoted = name.isprintable() and not {"'", '"'} <= set(name)
    return name if can_be_quoted and not is_data(name) else f"image-{image.digest[:4].hex()}"
