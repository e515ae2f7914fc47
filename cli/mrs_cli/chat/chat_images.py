"""Images and videos of a conversation: they are read once, and keep the name they came by."""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

from mrs.media.image_source import image_name, is_data, original_source
from mrs.media.open_image import open_image
from mrs.media.open_media import embed_media, embed_video, read_video
from mrs.media.video_file import read_facts
from mrs.media.video_names import names_video
from mrs.request import IMAGE_MARK, Message, text_of
from mrs_cli.chat.image_paths import find_image_paths, spelled


def read_image(source: str) -> str:
    """The image or video at a path or an address as a data: URI. Raises NotReadable."""
    return embed_media(source)


def read_given_video(source: str) -> str:
    """The video at a path or an address, whatever its name is. Raises NotReadable."""
    return embed_video(source)


def read_named_images(text: str, known: Sequence[str] = ()) -> tuple[str, tuple[str, ...]]:
    """The text without names of images, and these images as data: URIs. Raises NotReadable.

    The name of an image in `known` means that image.
    """
    by_name = {_name(image): image for image in known}
    found = find_image_paths(text, by_name.keys())
    images = tuple(by_name.get(source) or read_image(source) for source in found.sources)
    return found.rest, images


def as_typed(text: str, images: Sequence[str]) -> str:
    """What a person would type to get `text` with `images`, if these are known."""
    if not images:
        return text
    names = [spelled(_name(image)) for image in images]
    return " ".join([*names, text.replace(IMAGE_MARK, "")]).strip()


def image_names(images: Sequence[str]) -> set[str]:
    return set(map(_name, images))


def described(images: Sequence[str]) -> str:
    """A line for each image or video: its name, its size in pixels and its length."""
    lines = []
    for source in images:
        if names_video(source):
            facts = read_facts(source, read_video(source))
            size = f"{facts.width}\u00d7{facts.height}, {facts.seconds:.1f} s"
            lines.append(f"\u25a3 {image_name(source)} {size}")
            continue
        image = open_image(source).image
        lines.append(f"\u25a3 {image_name(source)} {image.width}\u00d7{image.height}")
    return "\n".join(lines)


def too_many_images(count: int, planned: int) -> str:
    """The warning about a conversation with more images than planned."""
    return (
        f"the conversation has {count} images, but the plan counted on {planned}: "
        f"add --max-num-images {count}"
    )


def has_videos(messages: Sequence[Message]) -> bool:
    return any(names_video(source) for each in messages for source in each.get("images", ()))


def count_images(messages: Sequence[Message]) -> int:
    return sum(len(message.get("images", ())) for message in messages)


def without_images(message: Message) -> Message:
    """The message for a model without vision."""
    if not message.get("images"):
        return message
    rest = message.copy()
    del rest["images"]
    return {**rest, "content": text_of(message).replace(IMAGE_MARK, "")}


def with_image_names(message: Message) -> Message:
    """The message with names in place of the images' content."""
    if not message.get("images"):
        return message
    return {**message, "images": [image_name(image) for image in message["images"]]}


def _name(image: str) -> str:
    """What a person may type for a known image."""
    name = original_source(image)
    can_be_quoted = name.isprintable() and not {"'", '"'} <= set(name)
    return name if can_be_quoted and not is_data(name) else f"image-{crc32(image.encode()):08x}"
