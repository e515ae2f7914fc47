"""Images that are larger than they seem, broken, or none."""

from __future__ import annotations

import base64
import io
import random
import struct
import zlib
from collections.abc import Callable
from functools import cache
from typing import Any

from PIL import Image

from support.hostile.request import MB, HostileRequest, Maker, asking

Made = tuple[str, bytes]


def _chunk(kind: bytes, content: bytes) -> bytes:
    check = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", check)


@cache
def _png(
    width: int, height: int, bits: int = 8, colours: int = 0, interlaced: bool = False,
    more: bytes = b"",
) -> bytes:  # fmt: skip
    """A black image; its pixels are compressed a row at a time."""
    channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colours]
    header = struct.pack(">IIBBBBB", width, height, bits, colours, 0, 0, interlaced)
    packer, row = zlib.compressobj(9), bytes(1 + (width * channels * bits + 7) // 8)
    rows = min(height, 500 * MB // len(row))  # a bomb's end is never read
    pixels = b"".join(packer.compress(row) for _ in range(rows)) + packer.flush()
    return (
        b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + more + _chunk(b"IDAT", pixels)
        + _chunk(b"IEND", b"")
    )  # fmt: skip


def _long_png(chance: random.Random) -> Made:
    width, height = chance.choice([(1, 60_000), (60_000, 1), (3, 2**20), (200, 40_000), (40, 8000)])
    return f"PNG {width} x {height}", _png(width, height)


def _large_png(chance: random.Random) -> Made:
    side = chance.choice([2000, 4000, 8000, 20_000, 2**31 - 1])
    if side > 20_000:
        return "PNG of all pixels there can be", _png(16, 16).replace(
            struct.pack(">II", 16, 16), struct.pack(">II", side, side)
        )
    bits, colours = chance.choice([(1, 0), (8, 0), (16, 2), (8, 6), (16, 6)])
    if side == 20_000:
        bits, colours = 1, 0
    return f"PNG {side} x {side}, {bits} bits, type {colours}", _png(side, side, bits, colours)


def _png_with_texts(chance: random.Random) -> Made:
    """Chunks that unpack to much: texts, a colour profile, EXIF data."""
    packed = zlib.compress(bytes(chance.choice([100, 50 * MB])), 9)
    chunk = chance.choice([
        _chunk(b"zTXt", b"a\0\0" + packed),
        _chunk(b"iCCP", b"a\0\0" + packed),
        _chunk(b"iTXt", b"a\0\1\0\0\0" + packed),
        _chunk(b"eXIf", bytes(MB)),
        _chunk(b"tEXt", b"a\0" + b"b" * MB) * 20,
        _chunk(b"acTL", struct.pack(">II", 10**9, 0)),
    ])  # fmt: skip
    return f"PNG with {chunk[4:8].decode()}", _png(32, 32, more=chunk)


def _interlaced_png(chance: random.Random) -> Made:
    return "PNG, interlaced, of wrong pixels", _png(chance.choice([64, 3000]), 64, interlaced=True)


def _saved(kind: str, size: tuple[int, int], mode: str = "RGB", **options: Any) -> bytes:
    file = io.BytesIO()
    Image.new(mode, size).save(file, kind, **options)
    return file.getvalue()


def _with_size(jpeg: bytes, width: int, height: int) -> bytes:
    """A JPEG file whose header claims another size."""
    start = next(i for i in range(len(jpeg)) if jpeg[i : i + 2] in (b"\xff\xc0", b"\xff\xc2"))
    return jpeg[: start + 5] + struct.pack(">HH", height, width) + jpeg[start + 9 :]


def _jpeg(chance: random.Random) -> Made:
    small = _saved("JPEG", (64, 64), progressive=chance.random() < 0.5)
    width, height = chance.choice([(65535, 65535), (8000, 8000), (65535, 1), (1, 65535), (0, 0)])
    return f"JPEG that claims {width} x {height}", _with_size(small, width, height)


def _large_jpeg(chance: random.Random) -> Made:
    side, mode = chance.choice([2000, 6000]), chance.choice(["RGB", "CMYK", "L"])
    is_progressive = chance.random() < 0.5
    return (
        f"JPEG {side} x {side} {mode}{' progressive' if is_progressive else ''}",
        _saved("JPEG", (side, side), mode, progressive=is_progressive),
    )


def _jpeg_with_segments(chance: random.Random) -> Made:
    """Many megabytes of EXIF data, profiles or comments before a small image."""
    marker = chance.choice([b"\xff\xe1", b"\xff\xe2", b"\xff\xfe", b"\xff\xdb", b"\xff\xc4"])
    start = {b"\xff\xe1": b"Exif\0\0MM\0*", b"\xff\xe2": b"ICC_PROFILE\0\1\1"}.get(marker, b"")
    segment = marker + struct.pack(">H", 65_535) + start.ljust(65_533, b"\0")
    small = _saved("JPEG", (64, 64))
    return f"JPEG with segments {marker.hex()}", small[:2] + segment * 100 + small[2:]


def _turned_jpeg(chance: random.Random) -> Made:
    exif = Image.Exif()
    exif[0x0112] = chance.choice([3, 5, 8, 99])
    side = chance.choice([64, 6000])
    return f"JPEG {side} x {side}, turned", _saved("JPEG", (side, side), exif=exif)


def _gif(chance: random.Random) -> Made:
    frames = chance.choice([2, 2000])
    side = chance.choice([16, 500])
    first = Image.new("P", (side, side))
    more = [Image.new("P", (side, side), color=1 + n % 200) for n in range(frames)]
    file = io.BytesIO()
    first.save(file, "GIF", save_all=True, append_images=more[: 2000 * 16 // side])
    return f"GIF of up to {frames} frames", file.getvalue()


def _wide_gif(chance: random.Random) -> Made:
    """One pixel in a canvas of four billion."""
    small = _saved("GIF", (1, 1), "P")
    return "GIF of a huge canvas", small[:6] + struct.pack("<HH", 65535, 65535) + small[10:]


def _webp(chance: random.Random) -> Made:
    width, height = chance.choice([(16383, 16383), (16383, 4000), (5000, 5000), (16383, 1)])
    return f"WebP {width} x {height}", _webp_of(width, height)


@cache
def _webp_of(width: int, height: int) -> bytes:
    """A lossless file; of a size that takes minutes to write, only the header has it."""
    if width * height > 30 * MB:
        small = _saved("WEBP", (16, 16), lossless=True)
        size = struct.pack("<I", (width - 1) | (height - 1) << 14)
        start = small.index(b"VP8L") + 9
        return small[:start] + size + small[start + 4 :]
    return _saved("WEBP", (width, height), lossless=True, quality=0, method=0)


def _moving_webp(chance: random.Random) -> Made:
    file = io.BytesIO()
    frames = [Image.new("RGB", (64, 64), (n, n, n)) for n in range(100)]
    frames[0].save(file, "WEBP", save_all=True, append_images=frames[1:], method=0)
    return "WebP of 100 frames", file.getvalue()


def _tiff(chance: random.Random) -> Made:
    return "TIFF", _saved("TIFF", (3000, 3000), compression=chance.choice(["tiff_deflate", None]))


def _avif(chance: random.Random) -> Made:
    """Four bytes of a length, a brand, and a size in a property."""
    box = b"\0\0\0\x1cftypavif\0\0\0\0avifmif1miaf"
    size = b"\0\0\0\x14ispe\0\0\0\0" + struct.pack(">II", 65535, 65535)
    return "AVIF", box + chance.choice([size, chance.randbytes(1000), b""])


def _bmp(chance: random.Random) -> Made:
    small = _saved("BMP", (16, 16))
    size = chance.choice([(2**31 - 1, 1), (30_000, 30_000), (16, -(2**31)), (0, 0), (7000, 7000)])
    return f"BMP that claims {size[0]} x {size[1]}", (
        small[:18] + struct.pack("<ii", *size) + small[26:]
    )


def _other_file(chance: random.Random) -> Made:
    contents = (
        b"<svg xmlns='http://www.w3.org/2000/svg' width='99999' height='99999'><script/></svg>",
        b"%PDF-1.7\n", b"II*\0" + bytes(100), b"\0\0\1\0\1\0", b"PK\3\4" + bytes(1000), b"",
        b"%!PS-Adobe-3.0 EPSF-3.0\n/x {x} def x", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"RIFF",
        b"GIF89a", b"P6 99999 99999 255\n", b"8BPS", b"SIMPLE  =                    T",
    )  # fmt: skip
    return "no image", chance.choice(contents)


def _damaged(chance: random.Random) -> Made:
    kind = chance.choice(["PNG", "JPEG", "GIF", "WEBP", "BMP"])
    whole = bytearray(_saved(kind, (300, 300)))
    for _ in range(chance.choice([1, 30])):
        whole[chance.randrange(len(whole))] = chance.randrange(256)
    return f"{kind}, damaged", bytes(whole[: chance.choice([len(whole), len(whole) // 2])])


def _noise(chance: random.Random) -> Made:
    """A good image that does not compress."""
    side = chance.choice([500, 2000])
    file = io.BytesIO()
    Image.frombytes("RGB", (side, side), chance.randbytes(3 * side * side)).save(
        file, "PNG", compress_level=0
    )
    return f"PNG of noise {side} x {side}", file.getvalue()


_FILES: tuple[Callable[[random.Random], Made], ...] = (
    _long_png, _large_png, _png_with_texts, _interlaced_png, _jpeg, _large_jpeg,
    _jpeg_with_segments, _turned_jpeg, _gif, _wide_gif, _webp, _moving_webp, _tiff, _avif, _bmp,
    _other_file, _damaged, _noise,
)  # fmt: skip


def _uri(content: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def _request(name: str, addresses: list[str], chance: random.Random) -> HostileRequest:
    """In the form of one of the three interfaces."""
    text = {"type": "text", "text": "What is this?"}
    path = chance.choice(["/v1/chat/completions", "/v1/messages", "/v1/responses", "/tokenize"])
    name = f"image: {name}, {path}"
    if path == "/v1/responses":
        images = [{"type": "input_image", "image_url": each} for each in addresses]
        content = [*images, {"type": "input_text", "text": "What is this?"}]
        fields: dict[str, Any] = {
            "input": [{"type": "message", "role": "user", "content": content}]
        }
        return asking(name, path, {**fields, "max_output_tokens": 4})
    if path == "/v1/messages":
        sources = [{"type": "url", "url": each} for each in addresses]
        blocks = [*({"type": "image", "source": each} for each in sources), text]
        return asking(
            name, path, {"messages": [{"role": "user", "content": blocks}], "max_tokens": 4}
        )
    parts = [*({"type": "image_url", "image_url": {"url": each}} for each in addresses), text]
    messages = [{"role": "user", "content": parts}]
    more = {} if path == "/tokenize" else {"max_tokens": 4}
    return asking(name, path, {"messages": messages, **more})


def _of_file(make: Callable[[random.Random], Made]) -> Maker:
    def made(chance: random.Random) -> HostileRequest:
        name, content = make(chance)
        return _request(name, [_uri(content)], chance)

    return made


def _many(chance: random.Random) -> HostileRequest:
    count, side = chance.choice([(20, 300), (1000, 2), (10_000, 1), (8, 2000)])
    address = _uri(_png(side, side))
    return _request(f"{count} of PNG {side} x {side}", [address] * count, chance)


def _many_different(chance: random.Random) -> HostileRequest:
    """Each is decoded and remembered."""
    count, side = chance.choice([(4, 3000), (100, 100)])
    addresses = [_uri(_png(side + n, side + chance.randrange(50))) for n in range(count)]
    return _request(f"{count} different PNG of side {side}", addresses, chance)


def _address(chance: random.Random) -> HostileRequest:
    addresses = (
        "", "x", "data:", "data:,", "data:image/png;base64,", "data:image/png,%89PNG",
        "data:text/html;base64,PGgxPg==", "data:image/png;base64,*", "file:///etc/passwd",
        "data:image/png;base64," + " " * 5 * MB, "data:image/png;base64," + "A" * 5 * MB,
        "data:image/png;base64," + "=" * MB, "data:" + "x" * MB + ";base64,AAAA",
        "data:video/mp4;base64,AAAA", "http://127.0.0.1:1/a.png", "http://169.254.169.254/a",
        "gopher://a", "http://[::1", "https://" + "a" * 100_000, "\0", "DATA:IMAGE/PNG;BASE64,A",
        "data:image/png;base64;base64;base64,AAAA", "data:image/svg+xml;utf8,<svg/>", "/etc/passwd",
    )  # fmt: skip
    address = chance.choice(addresses)
    return _request(f"address {address[:30]!r}", [address], chance)


def _video(chance: random.Random) -> HostileRequest:
    content = chance.choice([b"\0\0\0\x18ftypmp42", b"\x1aE\xdf\xa3", b"RIFF\0\0\0\0AVI ", b""])
    address = _uri(content + chance.randbytes(chance.choice([0, 10_000])), "video/mp4")
    part = {"type": "video_url", "video_url": {"url": address}}
    return asking(
        "image: a video of noise",
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": [part] * chance.choice([1, 50])}]},
    )


MAKERS: tuple[Maker, ...] = (*map(_of_file, _FILES), _many, _many_different, _address, _video)
