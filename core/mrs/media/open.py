"""Open a picture: read, checked before it is decoded, upright, in one of three modes."""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mrs.errors import NotReadable
from mrs.media import jpeg
from mrs.media.recent import Recent
from mrs.media.source import data_uri, is_data, read_source, unreadable
from mrs.media.strips import changed, strips

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFile import ImageFile

#: What the files may be called, and which decoders may see them.
SUFFIXES = ("png", "jpg", "jpeg", "bmp", "gif", "webp")
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP")
_ORIENTATION = 0x0112  # the EXIF tag


@dataclass(frozen=True)
class PictureLimits:
    """What a picture may take: bytes of its file, pixels, seconds of its whole download."""

    file_bytes: int = 64 * 2**20
    pixels: int = 64 * 2**20
    download_s: float = 60.0


@dataclass(frozen=True)
class Picture:
    """`image` is in mode L, RGB or RGBA, upright, the first frame of several.

    `digest` is the first 63 bits of the SHA-256 of mode, size and pixels.
    """

    image: Image
    digest: int


DEFAULT_LIMITS = PictureLimits()
_recent: Recent[tuple[str, PictureLimits], Picture] = Recent(most_bytes=256 * 2**20)


def open_picture(source: str, limits: PictureLimits = DEFAULT_LIMITS) -> Picture:
    """The image at a path, at a file://, http:// or https:// address, or in a data: URI.

    The last few from data: URIs are remembered: their content cannot change. Raises NotReadable,
    in a line that names the picture, for everything that can be wrong with it.
    """
    if not is_data(source):
        return _decode(source, _read(source, limits), limits)[0]
    if (known := _recent.get((source, limits))) is not None:
        return known
    picture = _decode(source, _read(source, limits), limits)[0]
    _recent.put((source, limits), picture, size_bytes=_pixel_bytes(picture.image))
    return picture


def hold_picture(source: str, limits: PictureLimits = DEFAULT_LIMITS) -> tuple[str, Picture]:
    """The picture, and a data: URI of its file as it is now, which keeps `source` as its name.

    Raises as `open_picture` does.
    """
    if is_data(source):
        return source, open_picture(source, limits)
    content = _read(source, limits)
    picture, mime_type = _decode(source, content, limits)
    held = data_uri(content, mime_type, source)
    _recent.put((held, limits), picture, size_bytes=_pixel_bytes(picture.image))
    return held, picture


def _read(source: str, limits: PictureLimits) -> bytes:
    return read_source(source, limits.file_bytes, limits.download_s)


def _decode(source: str, content: bytes, limits: PictureLimits) -> tuple[Picture, str]:
    """The picture and the MIME type of its file."""
    if content.startswith(b"\xff\xd8") and (excess := jpeg.excess(content)):
        raise unreadable(source, f"it has {excess}")
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(content), formats=_FORMATS) as file:
            _check_size(source, file, limits)
            file.load()
            _check_size(source, file, limits)  # a frame may be larger than its header says
            image = _upright(_plain(file), file)
            mime_type = Image.MIME.get(file.format or "", "application/octet-stream")
    except NotReadable:
        raise
    except UnidentifiedImageError as error:
        kinds = f"{', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}"
        raise unreadable(source, f"it is no {kinds} file") from error
    except Image.DecompressionBombError as error:
        raise _too_many_pixels(source, limits) from error
    except Exception as error:  # decoders fail in every way there is
        raise unreadable(source, "it is damaged") from error
    return Picture(image, _digest(image)), mime_type


def _check_size(source: str, image: ImageFile, limits: PictureLimits) -> None:
    width, height = image.size
    if width * height > limits.pixels:
        raise _too_many_pixels(source, limits)
    if width * height == 0:
        raise unreadable(source, "it has no pixels")


def _too_many_pixels(source: str, limits: PictureLimits) -> NotReadable:
    return unreadable(source, f"it has more than {limits.pixels / 1e6:.0f} million pixels")


def _plain(image: Image) -> Image:
    """The picture in mode L, RGB or RGBA: with transparency RGBA, without colour L."""
    if image.mode.startswith("I"):  # 16 bits of grey
        return changed(image, "L", _upper_bits)
    if "transparency" in image.info or image.mode in ("LA", "PA"):
        return image.convert("RGBA")
    if image.mode == "1":
        return image.convert("L")
    return image if image.mode in ("L", "RGB", "RGBA") else image.convert("RGB")


def _upper_bits(image: Image) -> Image:
    return image.convert("I").point(lambda value: value * (1 / 256)).convert("L")


def _upright(image: Image, file: ImageFile) -> Image:
    """Turned as the camera was held, where the file tells."""
    from PIL.Image import Transpose

    turns = {
        2: Transpose.FLIP_LEFT_RIGHT,
        3: Transpose.ROTATE_180,
        4: Transpose.FLIP_TOP_BOTTOM,
        5: Transpose.TRANSPOSE,
        6: Transpose.ROTATE_270,
        7: Transpose.TRANSVERSE,
        8: Transpose.ROTATE_90,
    }
    try:
        turn = turns.get(file.getexif().get(_ORIENTATION, 1))
    except Exception:  # damaged metadata, and pixels that are fine  # noqa: BLE001
        return image
    return image if turn is None else image.transpose(turn)


def _digest(image: Image) -> int:
    hashed = hashlib.sha256(f"{image.mode} {image.width} {image.height} ".encode())
    for _, strip in strips(image):
        hashed.update(strip.tobytes())
    return int.from_bytes(hashed.digest()[:8], "big") >> 1


def _pixel_bytes(image: Image) -> int:
    return image.width * image.height * len(image.getbands())
