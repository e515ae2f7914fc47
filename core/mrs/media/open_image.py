"""Open an image: check its size before decoding, decode it, rotate it upright."""

from __future__ import annotations

import hashlib
import io
from typing import TYPE_CHECKING

from mrs.errors import NoRoom, NotReadable
from mrs.media import jpeg
from mrs.media.colour_modes import strips, to_plain_mode
from mrs.media.decoded_image import DEFAULT_LIMITS, DecodedImage, ImageLimits
from mrs.media.image_source import unreadable
from mrs.media.media_memory import MediaMemory
from mrs.process.request_memory import PIXEL_BYTES, WEBP_PIXEL_BYTES
from mrs.request import Media

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFile import ImageFile

#: File name suffixes, and the Pillow decoders that are allowed.
SUFFIXES = ("png", "jpg", "jpeg", "bmp", "gif", "webp")
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP")
_ORIENTATION = 0x0112  # the EXIF tag


def open_image(
    media: Media, memory: MediaMemory | None = None, limits: ImageLimits = DEFAULT_LIMITS
) -> DecodedImage:
    """The image, decoded within `memory`, which remembers it.

    Raises NotReadable, with a line that names the image, for whatever is wrong with it.
    """
    memory = memory or MediaMemory()
    key = media.digest, limits
    with memory.decoding():
        if (remembered := memory.decoded.get(key)) is not None:
            memory.take(media, PIXEL_BYTES * remembered.image.width * remembered.image.height)
            return remembered
        decoded = _decode(media, memory, limits)
    memory.decoded.put(key, decoded, size_bytes=_pixel_bytes(decoded.image))
    return decoded


def _decode(media: Media, memory: MediaMemory, limits: ImageLimits) -> DecodedImage:
    source, content = media.name, media.content
    if content.startswith(b"\xff\xd8") and (excess := jpeg.excess(content)):
        raise unreadable(source, f"it has {excess}")
    from PIL import Image, UnidentifiedImageError

    try:
        with (
            memory.decoding(),
            io.BytesIO(
                content
            ) as opened,  # an image that is kept would keep the file, unless closed
            Image.open(opened, formats=_FORMATS) as file,
        ):
            _check_size(source, file, limits)
            memory.take(media, _decoding_bytes(file, content))
            file.load()
            _check_size(source, file, limits)  # a frame may be larger than its header says
            image = _upright(to_plain_mode(file), file)
    except (NotReadable, NoRoom):
        raise
    except UnidentifiedImageError as error:
        kinds = f"{', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}"
        raise unreadable(source, f"it is not a {kinds} file") from error
    except Image.DecompressionBombError as error:
        raise _too_many_pixels(source, limits) from error
    except Exception as error:  # decoders raise exceptions of many types
        raise unreadable(source, "it is damaged") from error
    return DecodedImage(image, _digest(image))


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
