"""Images that are decoded share their memory, and so do those that a model has got."""

from __future__ import annotations

import base64
import io
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Iterator

import pytest
from PIL import Image

from mrs.architecture.vision_spec import PixelScale
from mrs.errors import NoRoom, NotReadable, UsageError
from mrs.families.vision.llava import CropLayout
from mrs.media import media_memory
from mrs.media.media_loader import MediaLoader
from mrs.media.media_memory import MediaMemory
from mrs.media.open_image import open_image
from mrs.media.read_media import read_media
from mrs.request import Media, Message
from mrs.units import MIB

LAYOUT = CropLayout(
    edge=8, crop=8, patch_size=4, resampling="bicubic", token="<image>",
    scale=PixelScale((0.0,) * 3, (1.0,) * 3),
)  # fmt: skip
#: Of one prepared image.
PIXEL_BYTES = 4 * 3 * 8 * 8


def picture(width: int, height: int, colour: int = 0) -> Media:
    written = io.BytesIO()
    Image.new("RGB", (width, height), (colour, 0, 0)).save(written, "PNG")
    return Media.of(f"{colour}.png", written.getvalue(), "image")


@pytest.fixture
def memory() -> Iterator[MediaMemory]:
    """Room for an image of 100 x 100 pixels, and not for two."""
    made = MediaMemory()
    made.room.most_bytes = 12 * 100 * 100 + 4000
    yield made
    assert made.room.used_bytes == 0


def test_an_image_that_never_has_room_is_refused_before_it_is_decoded(
    memory: MediaMemory,
) -> None:
    with pytest.raises(NotReadable, match="more memory than there is for images"):
        open_image(picture(200, 200), memory)
    assert open_image(picture(100, 100), memory).image.size == (100, 100)


def test_images_wait_for_each_other(memory: MediaMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(media_memory, "_WAIT_S", 0.05)
    with memory.decoding():
        open_image(picture(100, 100, 1), memory)
        errors: list[Exception] = []

        def open_other() -> None:
            try:
                open_image(picture(100, 100, 2), memory)
            except NoRoom as error:
                errors.append(error)

        other = threading.Thread(target=open_other)
        other.start()
        other.join()
        assert [str(each) for each in errors] == [
            "all memory for images is in use: try again later"
        ]
    assert open_image(picture(100, 100, 2), memory).image.size == (100, 100)


def test_one_thread_has_room_for_one_image_after_another(memory: MediaMemory) -> None:
    with memory.decoding():
        for colour in range(5):
            open_image(picture(100, 100, 10 + colour), memory)


def test_a_damaged_image_gives_its_room_back(memory: MediaMemory) -> None:
    cut = picture(90, 90).content[:-30]
    with pytest.raises(NotReadable):
        open_image(Media.of("cut.png", cut, "image"), memory)
    assert memory.room.used_bytes == 0


def test_two_memories_know_nothing_of_each_other(memory: MediaMemory) -> None:
    with memory.decoding():
        open_image(picture(100, 100, 1), memory)
        assert open_image(picture(100, 100, 2), MediaMemory()).image.size == (100, 100)


def test_what_is_remembered_of_an_image_is_its_pixels_and_a_digest() -> None:
    """Not the megabytes of its file, nor the base64 in which it came."""
    memory = MediaMemory()
    tracemalloc.start()
    try:
        for colour in range(4):
            long_file = picture(9, 9, colour).content + bytes(4 * MIB)
            encoded = base64.b64encode(long_file).decode()
            opened = open_image(read_media(f"data:image/png;base64,{encoded}"), memory)
            del long_file, encoded
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert opened.image.size == (9, 9)
    assert kept < MIB
    again = Media.of("other.png", picture(9, 9, 3).content + bytes(4 * MIB), "image")
    assert open_image(again, memory) is opened


def messages(*colours: int) -> list[Message]:
    return [Message(role="user", content="", images=[picture(9, 9, each) for each in colours])]


def test_images_of_a_model_share_their_memory() -> None:
    loader = MediaLoader(LAYOUT, most_bytes=3 * PIXEL_BYTES)
    held = loader.load(messages(1, 2))
    for colour in range(3, 9):  # remembered ones are forgotten for new ones
        loader.load(messages(colour))
    more = loader.load(messages(9))
    with pytest.raises(NoRoom):
        loader.load(messages(10))
    del held
    assert len(loader.load(messages(11, 12))) == 2
    assert len(more) == 1


def test_a_conversation_with_too_many_images_is_refused_for_good() -> None:
    loader = MediaLoader(LAYOUT, most_bytes=3 * PIXEL_BYTES)
    with pytest.raises(UsageError, match="send fewer"):
        loader.load(messages(1, 2, 3, 4))
    assert len(loader.load(messages(1, 2, 3))) == 3


MANY_AT_ONCE = """
import io, resource, sys, threading
from PIL import Image
from mrs.media.media_memory import MediaMemory
from mrs.media.open_image import open_image
from mrs.request import Media
kind, memory = sys.argv[1], MediaMemory()
memory.room.most_bytes = int(sys.argv[2])
exif = Image.Exif()
exif[0x0112] = 6
sources = []
for value in range(4):
    written = io.BytesIO()
    made = Image.new("LA" if kind == "PNG" else "RGB", (4000, 4000), value)
    made.save(written, kind, exif=exif)
    sources.append(Media.of("a", written.getvalue(), "image"))
del made
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
threads = [threading.Thread(target=open_image, args=(each, memory)) for each in sources]
[each.start() for each in threads]
[each.join() for each in threads]
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
@pytest.mark.full
def test_four_threads_decode_within_the_room_of_one(kind: str) -> None:
    """Remembered images come in addition, and what one thread makes while another ends."""
    room, remembered = 16 * 4000 * 4000 + MIB, 64 * MIB
    command = [sys.executable, "-c", MANY_AT_ONCE, kind, str(room)]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(run.stdout) < room + remembered + 64 * MIB
