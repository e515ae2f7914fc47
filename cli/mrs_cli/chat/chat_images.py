"""Pictures of a conversation: kept as they were when they came, called what they were called."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

from mrs.media.open import hold_picture, open_picture
from mrs.media.source import is_data, original_source, picture_name
from mrs.request import IMAGE_MARK, Message
from mrs_cli.chat.image_paths import find_pictures, spelled


@dataclass(frozen=True)
class Shown:
    """A text with a mark for each of `images`, which are data: URIs."""

    text: str
    images: tuple[str, ...]


def hold(source: str) -> str:
    """The picture at `source`, whatever becomes of it there. Raises NotReadable."""
    return hold_picture(source)[0]


def attached(text: str, known: Sequence[str] = ()) -> Shown:
    """What a person typed, with the pictures that it names in front of the other words.

    A name of one that is `known` means that one. Raises NotReadable.
    """
    by_name = {_name(image): image for image in known}
    words = find_pictures(text, by_name.keys())
    images = tuple(by_name.get(source) or hold(source) for source in words.sources)
    return Shown(IMAGE_MARK * len(images) + words.rest, images)


def typed(text: str, images: Sequence[str]) -> str:
    """What a person would type to get `text` with `images`, where these are known."""
    if not images:
        return text
    names = [spelled(_name(image)) for image in images]
    return " ".join([*names, text.replace(IMAGE_MARK, "")]).strip()


def reworded(text: str, images: Sequence[str]) -> str:
    """`text`, which still names `images` where it names no pictures of its own."""
    names = {_name(image) for image in images}
    return text if find_pictures(text, names).sources else typed(text, images)


def described(images: Sequence[str]) -> str:
    """A line for each picture: its name and size."""
    lines = []
    for source in images:
        image = open_picture(source).image
        lines.append(f"\u25a3 {picture_name(source)} {image.width}\u00d7{image.height}")
    return "\n".join(lines)


def too_many(images: int, planned: int) -> str:
    """What to say where a conversation has more images than the plan counts with."""
    counted = "1 image" if planned == 1 else f"{planned} images"
    return (
        f"the plan counts with {counted} and the conversation has {images}: "
        f"--max-num-images {images} makes room for them"
    )


def count_images(messages: Sequence[Message]) -> int:
    return sum(len(message.get("images", ())) for message in messages)


def without_images(message: Message) -> Message:
    """What a model sees of a message that sees no images."""
    if not message.get("images"):
        return message
    return {"role": message["role"], "content": message["content"].replace(IMAGE_MARK, "")}


def with_names(message: Message) -> Message:
    """The message with its images by name alone."""
    if not message.get("images"):
        return message
    return {**message, "images": [picture_name(image) for image in message["images"]]}


def _name(image: str) -> str:
    """What a person may type for a picture that is known."""
    name = original_source(image)
    can_be_quoted = name.isprintable() and not {"'", '"'} <= set(name)
    return name if can_be_quoted and not is_data(name) else f"image-{crc32(image.encode()):08x}"
