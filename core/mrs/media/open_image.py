"""Open an image: read the file, check its size before decoding, rotate it upright."""

from __future__ import annotations

import hashlib
import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from mrs.architecture.vision_spec import MAX_ASPECT_RATIO
from mrs.errors import NoRoom, NotReadable
from mrs.media import jpeg
from mrs.media.colour_modes import strips, to_plain_mode
from mrs.media.image_source import data_uri, is_data, read_source, unreadable
from mrs.media.lru_cache import LruCache
from mrs.memory_room import MemoryRoom
from mrs.sizes.request_sizes import PIXEL_BYTES, WEBP_PIXEL_BYTES

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFile import ImageFile

#: File name suffixes, and the Pillow decoders that are allowed.
SUFFIXES = ("png", "jpg", "jpeg", "bmp", "gif", "webp")
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP")
_ORIENTATION = 0x0112  # the EXIF tag


@dataclass(frozen=True)
class ImageLimits:
    """Limits for one image: bytes of its file, pixels, seconds for the whole download.

    It is at most `aspect` times as long as wide. Size and aspect are checked before decoding.
    With `only_public` it is not downloaded from this machine or a local network.
    """

    file_bytes: int = 64 * 2**20
    pixels: int = 64 * 2**20
    aspect: int = MAX_ASPECT_RATIO
    download_s: float = 60.0
    only_public: bool = False


@dataclass(frozen=True)
class DecodedImage:
    """`image` is the first frame, upright, in mode L, RGB or RGBA.

    `digest` is the first 63 bits of the SHA-256 of mode, size and pixels.
    """

    image: Image
    digest: int


DEFAULT_LIMITS = ImageLimits()
#: Decoded images of data: URIs; a server may remember fewer.
REMEMBERED_BYTES = 64 * 2**20
DECODED_IMAGES: LruCache[tuple[str, ImageLimits], DecodedImage] = LruCache(REMEMBERED_BYTES)
#: The memory of images that are decoded, and then resized by the same thread.
DECODING_ROOM = MemoryRoom()
_WAIT_S = 20.0
#: Of the text of a data: URI while it becomes the bytes of a file.
_BASE64_COPIES = 3
#: The room that each thread has taken.
_own = threading.local()


def open_image(source: str, limits: ImageLimits = DEFAULT_LIMITS) -> DecodedImage:
    """The image at a path, at a file://, http:// or https:// address, or in a data: URI.

    Images from data: URIs are cached, because their content cannot change. Raises NotReadable,
    with a line that names the image, for whatever is wrong with it.
    """
    if not is_data(source):
        return _decode(source, _read(source, limits), limits)[0]
    with decoding():
        if (cached := DECODED_IMAGES.get((source, limits))) is not None:
            take_room(source, PIXEL_BYTES * cached.image.width * cached.image.height)
            return cached
        take_room(source, _BASE64_COPIES * len(source))
        decoded = _decode(source, _read(source, limits), limits)[0]
    DECODED_IMAGES.put((source, limits), decoded, size_bytes=_pixel_bytes(decoded.image))
    return decoded


@contextmanager
def decoding() -> Iterator[None]:
    """Until the end of this, the thread keeps the room of its last image for what it makes of it.

    Each image has its room instead of that of the one before, so that no thread waits for room
    while it has some.
    """
    _own.depth = getattr(_own, "depth", 0) + 1
    try:
        yield
    finally:
        _own.depth -= 1
        if not _own.depth:
            _give_room_back()


def take_room(source: str, size_bytes: int, kind: Literal["image", "video"] = "image") -> None:
    """Within `decoding`, take the room to decode an image or a video.

    Raises NotReadable if it needs too much, and NoRoom if others have the room.
    """
    if not DECODING_ROOM.fits(size_bytes):
        reason = f"to decode it takes more memory than there is for {kind}s"
        raise unreadable(source, reason, "scale it down", kind)
    _give_room_back()
    DECODING_ROOM.take(size_bytes, f"{kind}s", _WAIT_S)
    _own.size_bytes = size_bytes


def _give_room_back() -> None:
    if size_bytes := getattr(_own, "size_bytes", 0):
        _own.size_bytes = 0
        DECODING_ROOM.give_back(size_bytes)


def embed_image(
    source: str, limits: ImageLimits = DEFAULT_LIMITS, content: bytes | None = None
) -> tuple[str, DecodedImage]:
    """A data: URI with the file's present content and with `source` as its name, and the image.

    The `content` is read if it is not given. Raises as `open_image` does.
    """
    if is_data(source):
        return source, open_image(source, limits)
    content = _read(source, limits) if content is None else content
    decoded, mime_type = _decode(source, content, limits)
    uri = data_uri(content, mime_type, source)
    DECODED_IMAGES.put((uri, limits), decoded, size_bytes=_pixel_bytes(decoded.image))
    return uri, decoded


def _read(source: str, limits: ImageLimits) -> bytes:
    return read_source(source, limits.file_bytes, limits.download_s, only_public=limits.only_public)


def _decode(source: str, content: bytes, limits: ImageLimits) -> tuple[DecodedImage, str]:
    """The image and the MIME type of its file."""
    if content.startswith(b"\xff\xd8") and (excess := jpeg.excess(content)):
        raise unreadable(source, f"it has {excess}")
    from PIL import Image, UnidentifiedImageError

    try:
        with decoding(), Image.open(io.BytesIO(content), formats=_FORMATS) as file:
            _check_size(source, file, limits)
            take_room(source, _decoding_bytes(file, content))
            file.load()
            _check_size(source, file, limits)  # a frame may be larger than its header says
            image = _upright(to_plain_mode(file), file)
            mime_type = Image.MIME.get(file.format or "", "application/octet-stream")
    except (NotReadable, NoRoom):
        raise
    except UnidentifiedImageError as error:
        kinds = f"{', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}"
        raise unreadable(source, f"it is not a {kinds} file") from error
    except Image.DecompressionBombError as error:
        raise _too_many_pixels(source, limits) from error
    except Exception as error:  # decoders raise exceptions of many types
        raise unreadable(source, "it is damaged") from error
    return DecodedImage(image, _digest(image)), mime_type


def _decoding_bytes(file: ImageFile, content: bytes) -> int:
    per_pixel = WEBP_PIXEL_BYTES if file.format == "WEBP" else PIXEL_BYTES
    return per_pixel * file.width * file.height + 2 * len(content)


def _check_size(source: str, image: ImageFile, limits: ImageLimits) -> None:
    width, height = image.size
    if width * height > limits.pixels:
        raise _too_many_pixels(source, limits)
    if width * height == 0:
        raise unreadable(source, "it has no pixels")
    short, long = sorted((width, height))
    if long > limits.aspect * short:
        raise unreadable(
            source,
            f"it is {long / short:,.0f} times as long as wide",
            hint=f"crop it to {limits.aspect} times at most",
        )


def _too_many_pixels(source: str, limits: ImageLimits) -> NotReadable:
    return unreadable(source, f"it has more than {limits.pixels / 1e6:.0f} million pixels")


def _upright(image: Image, file: ImageFile) -> Image:
    """Rotated as the EXIF orientation says."""
    from PIL.Image import Transpose

    transpositions = {
        2: Transpose.FLIP_LEFT_RIGHT,
        3: Transpose.ROTATE_180,
        4: Transpose.FLIP_TOP_BOTTOM,
        5: Transpose.TRANSPOSE,
        6: Transpose.ROTATE_270,
        7: Transpose.TRANSVERSE,
        8: Transpose.ROTATE_90,
    }
    try:
        transposition = transpositions.get(file.getexif().get(_ORIENTATION, 1))
    except Exception:  # damaged metadata does not harm the pixels  # noqa: BLE001
        return image
    return image if transposition is None else image.transpose(transposition)


def _digest(image: Image) -> int:
    hashed = hashlib.sha256(f"{image.mode} {image.width} {image.height} ".encode())
    for _, strip in strips(image):
        hashed.update(strip.tobytes())
    return int.from_bytes(hashed.digest()[:8], "big") >> 1


def _pixel_bytes(image: Image) -> int:
    return image.width * image.height * (1 if image.mode == "L" else 4)
