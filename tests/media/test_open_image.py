"""Images of every kind, from every place, whole and damaged."""

from __future__ import annotations

import base64
import hashlib
import io
import os
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from mrs.errors import NotReadable
from mrs.media import open_image as opening
from mrs.media.decoded_image import DEFAULT_LIMITS, DecodedImage, ImageLimits
from mrs.media.image_source import image_name
from mrs.media.read_media import ReadLimits, read_media, to_data_uri


def noise(mode: str, width: int = 23, height: int = 17) -> Image.Image:
    """An image of pixels that differ."""
    bands = len(Image.new(mode, (1, 1)).getbands())
    values = np.random.default_rng(bands).integers(0, 256, (height, width, bands), dtype=np.uint8)
    return Image.fromarray(values[..., 0] if bands == 1 else values, mode=mode)


def encoded(image: Image.Image, format: str, **settings: object) -> bytes:
    file = io.BytesIO()
    image.save(file, format, **settings)
    return file.getvalue()


def stored(folder: Path, name: str, content: bytes) -> str:
    path = folder / name
    path.write_bytes(content)
    return str(path)


def open_image(
    source: str, limits: ImageLimits = DEFAULT_LIMITS, *, read: ReadLimits | None = None
) -> DecodedImage:
    return opening.open_image(read_media(source, read or ReadLimits()), limits=limits)


def refusal(
    source: str, limits: ImageLimits = DEFAULT_LIMITS, *, read: ReadLimits | None = None
) -> str:
    with pytest.raises(NotReadable) as caught:
        open_image(source, limits, read=read)
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 300
    return text


@pytest.mark.parametrize(
    ("format", "mode"),
    [("PNG", "RGB"), ("PNG", "RGBA"), ("BMP", "RGB"), ("WEBP", "RGB"), ("WEBP", "RGBA")],
)
def test_pixels_are_those_of_the_file(tmp_path: Path, format: str, mode: str) -> None:
    image = noise(mode)
    lossless = {"lossless": True, "exact": True} if format == "WEBP" else {}
    path = stored(tmp_path, f"a.{format.lower()}", encoded(image, format, **lossless))
    found = open_image(path).image
    assert found.mode == mode
    assert np.array_equal(np.asarray(found), np.asarray(image))


def test_grey_stays_grey(tmp_path: Path) -> None:
    for format in ("PNG", "BMP", "JPEG"):
        found = open_image(stored(tmp_path, "grey", encoded(noise("L"), format))).image
        assert found.mode == "L"
        error = np.asarray(found, dtype=int) - np.asarray(noise("L"), dtype=int)
        assert abs(error).max() <= (60 if format == "JPEG" else 0)


def test_grey_of_sixteen_bits_keeps_its_upper_eight(tmp_path: Path) -> None:
    values = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    found = open_image(stored(tmp_path, "a.png", encoded(Image.fromarray(values), "PNG"))).image
    assert found.mode == "L"
    assert np.array_equal(np.asarray(found), values >> 8)


def test_black_and_white_becomes_grey(tmp_path: Path) -> None:
    image = noise("L").point(lambda value: 255 * (value > 99), "1")
    found = open_image(stored(tmp_path, "a.png", encoded(image, "PNG"))).image
    assert found.mode == "L"
    assert np.array_equal(np.asarray(found) > 0, np.asarray(image))


def test_grey_with_transparency_becomes_rgba(tmp_path: Path) -> None:
    found = open_image(stored(tmp_path, "a.png", encoded(noise("LA"), "PNG"))).image
    assert found.mode == "RGBA"
    expected = np.asarray(noise("LA"))
    assert np.array_equal(np.asarray(found)[..., [0, 1, 2, 3]], expected[..., [0, 0, 0, 1]])


@pytest.mark.parametrize("format", ["PNG", "GIF", "BMP"])
def test_palettes_become_colours(tmp_path: Path, format: str) -> None:
    image = noise("RGB").quantize(16)
    found = open_image(stored(tmp_path, "a", encoded(image, format))).image
    assert found.mode == "RGB"
    palette = np.asarray(image.getpalette()).reshape(-1, 3)
    assert np.array_equal(np.asarray(found), palette[np.asarray(image)])


@pytest.mark.parametrize("format", ["PNG", "GIF"])
def test_a_transparent_colour_of_a_palette_is_transparent(tmp_path: Path, format: str) -> None:
    image = noise("RGB").quantize(16)
    found = open_image(stored(tmp_path, "a", encoded(image, format, transparency=3))).image
    assert found.mode == "RGBA"
    assert np.array_equal(np.asarray(found)[..., 3] == 0, np.asarray(image) == 3)


def test_cmyk_becomes_rgb(tmp_path: Path) -> None:
    image = Image.new("CMYK", (16, 16), (255, 0, 0, 0))
    found = open_image(stored(tmp_path, "a.jpg", encoded(image, "JPEG", quality=95))).image
    assert found.mode == "RGB"
    assert np.abs(np.asarray(found, dtype=int) - [0, 255, 255]).max() < 4


@pytest.mark.parametrize("format", ["GIF", "WEBP", "PNG"])
def test_the_first_of_several_frames(tmp_path: Path, format: str) -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "lime", "blue")]
    content = encoded(frames[0], format, save_all=True, append_images=frames[1:])
    found = open_image(stored(tmp_path, "a", content)).image.convert("RGB")
    assert np.abs(np.asarray(found, dtype=int) - [255, 0, 0]).max() < 8


@pytest.mark.parametrize("orientation", range(10))
@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP"])
def test_images_stand_upright(tmp_path: Path, format: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    content = encoded(noise("RGB"), format, exif=exif)
    found = open_image(stored(tmp_path, "a", content)).image
    expected = ImageOps.exif_transpose(Image.open(io.BytesIO(content)))
    assert found.size == expected.size
    assert np.array_equal(np.asarray(found), np.asarray(expected))


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_damaged_metadata_spoils_no_image(tmp_path: Path) -> None:
    content = encoded(noise("RGB"), "JPEG", exif=b"Exif\x00\x00II*\x00\xff\xff\xff\xff garbage")
    assert open_image(stored(tmp_path, "a.jpg", content)).image.size == (23, 17)


def test_one_pixel_and_long_images(tmp_path: Path) -> None:
    for size in ((1, 1), (1, 200), (200, 1)):
        path = stored(tmp_path, "a.png", encoded(noise("RGB", *size), "PNG"))
        assert open_image(path).image.size == size


def test_the_digest_says_whether_pixels_are_the_same(tmp_path: Path) -> None:
    image = noise("RGB")
    same = [
        open_image(stored(tmp_path, "a.png", encoded(image, "PNG"))).digest,
        open_image(stored(tmp_path, "b.bmp", encoded(image, "BMP"))).digest,
    ]
    hashed = hashlib.sha256(b"RGB 23 17 " + np.asarray(image).tobytes()).digest()
    assert same == [int.from_bytes(hashed, "big") >> 193] * 2
    image.putpixel((3, 3), (0, 0, 0))
    other = open_image(stored(tmp_path, "c.png", encoded(image, "PNG"))).digest
    turned = Image.frombytes("RGB", (17, 23), noise("RGB").tobytes())
    reshaped = open_image(stored(tmp_path, "d.png", encoded(turned, "PNG"))).digest
    assert len({same[0], other, reshaped}) == 3
    assert all(0 <= digest < 2**63 for digest in (other, reshaped))


def test_ways_to_name_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path(stored(tmp_path, "my cat é.png", encoded(noise("RGB"), "PNG")))
    digest = open_image(str(path)).digest
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    uri = path.as_uri()
    names = ("my cat é.png", "./my cat é.png", "~/my cat é.png", uri, "FILE" + uri[4:])
    for name in (*names, uri.replace("file://", "file://localhost")):
        assert open_image(name).digest == digest


def test_a_data_uri_holds_an_image() -> None:
    content = encoded(noise("RGB"), "PNG")
    plain = base64.b64encode(content).decode()
    folded = plain[:40] + "\r\n " + plain[40:]
    quoted = plain.replace("+", "%2B").replace("/", "%2F").replace("=", "%3D")
    for head in ("data:image/png;base64,", "DATA:;BASE64,", "data:image/png;name=a%20b;base64,"):
        for body in (plain, folded, quoted):
            found = open_image(head + body)
            assert np.array_equal(np.asarray(found.image), np.asarray(noise("RGB")))


def test_an_image_that_was_read_outlives_its_file(tmp_path: Path) -> None:
    path = stored(tmp_path, "my cat; 1,000 %41.png", encoded(noise("RGB"), "PNG"))
    read = read_media(path)
    Path(path).write_bytes(encoded(noise("L"), "PNG"))
    assert read.name == path
    assert read.kind == "image"
    held = to_data_uri(read)
    assert held.startswith("data:image/png;name=")
    again = base64.b64decode(held.partition(",")[2])
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(again))), np.asarray(noise("RGB")))
    assert read_media(held) == read
    assert open_image(held).digest != open_image(path).digest


def test_an_image_without_a_name_has_none_in_its_uri() -> None:
    content = encoded(noise("RGB"), "WEBP")
    uri = "data:image/webp;base64," + base64.b64encode(content).decode()
    assert to_data_uri(read_media(uri)) == uri


def test_names_are_short() -> None:
    assert image_name("cat.png") == "cat.png"
    assert len(image_name("data:image/png;base64," + "A" * 100_000)) < 100
    assert image_name("data:image/png;base64," + "A" * 99).startswith("data:image/png;base64,AAA")


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("nowhere.png", "No such file"),
        ("~nobody-of-this-name/cat.png", "nobody-of-this-name"),
        ("file://elsewhere/cat.png", "another machine"),
        ("file:///nowhere/cat.png", "No such file"),
        ("nul\0l.png", "the path is invalid"),
        ("half\ud800.png", "the path is invalid"),
        ("x" * 5000 + ".png", "File name too long"),
        ("", "folder"),
        ("data:image/png,abc", "base64"),
        ("data:image/png;base64", "base64"),
        ("data:image/png;base64,!!!!", "damaged"),
        ("data:image/png;base64,é", "damaged"),
        ("data:image/png;base64,aGVsbG8=", "not a png, jpg, jpeg, bmp, gif or webp file"),
        ("http://[", "the address is invalid"),
        ("http://127.0.0.1:99999/cat.png", "the address is invalid"),
        ("http:///cat.png", ""),
    ],
)
def test_what_cannot_be_found_is_said_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    said = refusal(source)
    assert reason in said
    assert said.startswith(f"image {image_name(source)} cannot be read")
    said.encode()


def test_a_folder_and_a_pipe_are_no_images(tmp_path: Path) -> None:
    assert "folder" in refusal(str(tmp_path))
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe.png")
        assert "it is not a file" in refusal(str(tmp_path / "pipe.png"))
        assert "it is not a file" in refusal("/dev/zero")


@pytest.mark.parametrize("format", ["TIFF", "PPM", "ICO", "TGA", "PCX", "JPEG2000"])
def test_other_formats_are_refused_whatever_they_are_called(tmp_path: Path, format: str) -> None:
    path = stored(tmp_path, "a.png", encoded(noise("RGB", 32, 32), format))
    assert "it is not a png, jpg" in refusal(path)


@pytest.mark.parametrize("format", ["PNG", "JPEG", "BMP", "GIF", "WEBP"])
def test_cut_and_scrambled_files_never_end_in_a_traceback(tmp_path: Path, format: str) -> None:
    content = encoded(noise("RGB", 64, 64), format)
    for end in (0, 1, 10, 30, len(content) // 3, len(content) // 2):
        assert "cannot be read" in refusal(stored(tmp_path, "cut", content[:end]))
    random = np.random.default_rng(7)
    for _ in range(60):
        damaged = bytearray(content)
        for place in random.integers(0, len(damaged), 8):
            damaged[place] = random.integers(256)
        path = stored(tmp_path, "damaged", bytes(damaged))
        with suppress(NotReadable):
            assert open_image(path).image.mode in ("L", "RGB", "RGBA")


def test_a_limit_on_bytes(tmp_path: Path) -> None:
    content = encoded(noise("RGB"), "BMP")
    path = stored(tmp_path, "a.bmp", content)
    uri = "data:;base64," + base64.b64encode(content).decode()
    for source in (path, uri):
        open_image(source, read=ReadLimits(image_bytes=len(content)))
        assert "MiB" in refusal(source, read=ReadLimits(image_bytes=len(content) - 1))
    assert "MiB" in refusal(
        uri + "\n" * 10 * len(content), read=ReadLimits(image_bytes=len(content))
    )


def test_a_limit_on_pixels_holds_before_decoding(tmp_path: Path) -> None:
    at_limit = stored(tmp_path, "a.png", encoded(noise("RGB", 20, 10), "PNG"))
    open_image(at_limit, ImageLimits(pixels=200))
    assert "million pixels" in refusal(at_limit, ImageLimits(pixels=199))


def png_of(width: int, height: int) -> bytes:
    """A few bytes whose header claims a size."""
    content = bytearray(encoded(Image.new("L", (1, 1)), "PNG"))
    content[16:24] = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    content[29:33] = zlib.crc32(content[12:29]).to_bytes(4, "big")
    return bytes(content)


def gif_with_a_large_frame() -> bytes:
    content = bytearray(encoded(Image.new("L", (1, 1)), "GIF"))
    at = content.index(b",", 13)
    content[at + 5 : at + 9] = b"\xff\xff\xff\xff"
    return bytes(content)


@pytest.mark.parametrize(
    "make",
    [
        lambda: png_of(10_000, 10_000),
        lambda: png_of(2**31 - 1, 2**31 - 1),
        gif_with_a_large_frame,
        lambda: (
            b"BM"
            + bytes(12)
            + (40).to_bytes(4, "little")
            + b"\xff\xff\x00\x00" * 2
            + b"\x01\x00\x18\x00"
            + bytes(24)
        ),
    ],
)
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_decompression_bombs(tmp_path: Path, make: Callable[[], bytes]) -> None:
    path = stored(tmp_path, "bomb", make())
    start_s = time.process_time()
    assert "more than 67 million pixels" in refusal(path)
    assert time.process_time() - start_s < 5


MEASURE = """
import sys
from pathlib import Path
from PIL import Image
from mrs.media.colour_modes import to_rgb
from mrs.media.open_image import open_image
from mrs.media.read_media import read_media
def peak_bytes():
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
Image.init()
before = peak_bytes()
to_rgb(open_image(read_media(sys.argv[1])).image)
print(peak_bytes() - before)
"""


@pytest.mark.full
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="measured as Linux does")
@pytest.mark.parametrize(
    ("colour", "channels", "copies"),
    [
        (0, 1, 2),
        pytest.param(2, 3, 1, marks=pytest.mark.full),
        pytest.param(6, 4, 2, marks=pytest.mark.full),
    ],
)
def test_sixteen_bits_take_no_more_memory_than_the_pixels(
    tmp_path: Path, colour: int, channels: int, copies: int
) -> None:
    """The process as the system sees it: `copies` of four bytes a pixel and a few MiB."""
    side = 4096
    head = struct.pack(">IIBBBBB", side, side, 16, colour, 0, 0, 0)
    data = zlib.compress((b"\0" + bytes(2 * channels * side)) * side, 1)
    parts = ((b"IHDR", head), (b"IDAT", data), (b"IEND", b""))
    content = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(part)) + kind + part + struct.pack(">I", zlib.crc32(kind + part))
        for kind, part in parts
    )
    path = stored(tmp_path, "a.png", content)
    ran = subprocess.run(
        [sys.executable, "-c", MEASURE, path], capture_output=True, text=True, check=True
    )
    assert int(ran.stdout) < copies * 4 * side**2 + 24 * 2**20


def jpeg_with(inserted: bytes, *, before: bytes) -> bytes:
    content = encoded(noise("RGB", 64, 64), "JPEG", progressive=True)
    at = content.rindex(before)
    return content[:at] + inserted + content[at:]


def test_jpeg_files_with_very_many_parts(tmp_path: Path) -> None:
    content = encoded(noise("RGB", 64, 64), "JPEG", progressive=True)
    scan = content[content.rindex(b"\xff\xda") : content.rindex(b"\xff\xd9")]
    many_scans = jpeg_with(scan * 200, before=b"\xff\xd9")
    assert "more than 100 scans" in refusal(stored(tmp_path, "a.jpg", many_scans))
    note = b"\xff\xe1\x00\x0cExif\x00\x00abcd"
    many_segments = b"\xff\xd8\xff\xd9" + note * 20_000 + content[2:]
    assert "more than 10000 segments" in refusal(stored(tmp_path, "b.jpg", many_segments))


def test_what_follows_a_jpeg_is_not_counted(tmp_path: Path) -> None:
    content = encoded(noise("RGB", 64, 64), "JPEG") + b"\xff\xda\xff\xe1" * 20_000
    assert open_image(stored(tmp_path, "moving.jpg", content)).image.size == (64, 64)
