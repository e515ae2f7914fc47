"""Processors as their makers publish them: how fast they read memory, and how much they compute.

A processor reads as fast as its memory channels, of 8 bytes each, at the fastest transfer rate that
its maker specifies, and multiplies as fast as its cores at the clock of all cores.
"""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

from mrs.units import GIB

#: Bytes that a memory channel transfers at a time.
CHANNEL_BYTES = 8
MOST_NEAR = 3
#: How alike names must be to be proposed, of 1.
CLOSE = 0.75
_MAKER = re.compile(
    r"\(r\)|\(tm\)|\bamd\b|\bintel\b|[0-9]+(?:st|nd|rd|th) gen|processor|cpu|[0-9]+-core|\bcore\b"
    r"|@.*|\bw/.*|[\s+-]",
    re.IGNORECASE,
)
_WITH_SIZE = re.compile(r"(.*\S)\s+([0-9]+)\s*Gi?B", re.IGNORECASE)


class Platform(NamedTuple):
    """Processors for the same memory, by their names: how many cores, and GHz of all cores."""

    channels: int
    transfers_per_s: float
    path: str
    processors: dict[str, tuple[int, float]]


#: From the makers' product pages. A name is part of what the operating system reports; the longest
#: that a name contains counts.
PLATFORMS = (
    Platform(2, 3200e6, "avx2", {
        "Ryzen 9 5950X": (16, 4.0), "Ryzen 9 5900X": (12, 4.2), "Ryzen 7 5800X": (8, 4.5),
        "Ryzen 7 5700X": (8, 4.2), "Ryzen 5 5600X": (6, 4.4), "Ryzen 5 5600": (6, 4.2),
        "Ryzen 7 5700G": (8, 4.3), "Ryzen 9 3950X": (16, 3.8), "Ryzen 9 3900X": (12, 4.0),
        "Ryzen 7 3700X": (8, 4.0), "Core i9-11900K": (8, 4.8), "Core i7-11700K": (8, 4.6),
    }),
    Platform(2, 5200e6, "avx512_bf16", {
        "Ryzen 9 7950X": (16, 5.0), "Ryzen 9 7950X3D": (16, 4.8), "Ryzen 9 7900X": (12, 5.0),
        "Ryzen 9 7900": (12, 4.6), "Ryzen 7 7800X3D": (8, 4.8), "Ryzen 7 7700X": (8, 5.1),
        "Ryzen 7 7700": (8, 4.9), "Ryzen 5 7600X": (6, 5.1), "Ryzen 5 7600": (6, 4.9),
        "Ryzen 7 8700G": (8, 4.6),
    }),
    Platform(2, 5600e6, "avx512_bf16", {
        "Ryzen 9 9950X": (16, 5.1), "Ryzen 9 9950X3D": (16, 5.1), "Ryzen 9 9900X": (12, 5.2),
        "Ryzen 7 9800X3D": (8, 5.1), "Ryzen 7 9700X": (8, 5.1), "Ryzen 5 9600X": (6, 5.2),
        "Ryzen 7 7840HS": (8, 4.5), "Ryzen 7 8840U": (8, 4.0), "Ryzen 9 7940HS": (8, 4.6),
        "Ryzen 7 8845HS": (8, 4.5), "Ryzen 9 8945HS": (8, 4.6), "Ryzen AI 5 340": (6, 4.0),
    }),
    Platform(2, 7500e6, "avx512_bf16", {
        "Ryzen AI 9 HX 370": (12, 4.0), "Ryzen AI 9 365": (10, 4.0), "Ryzen AI 7 350": (8, 4.0),
    }),
    Platform(2, 4800e6, "avx_vnni", {
        "Core i9-12900K": (16, 4.6), "Core i7-12700K": (12, 4.5), "Core i5-12600K": (10, 4.3),
        "Core i5-12400": (6, 4.0),
    }),
    Platform(2, 5600e6, "avx_vnni", {
        "Core i9-13900K": (24, 4.7), "Core i7-13700K": (16, 4.7), "Core i5-13600K": (14, 4.6),
        "Core i9-14900K": (24, 4.8), "Core i7-14700K": (20, 4.7), "Core i5-14600K": (14, 4.6),
        "Core Ultra 9 185H": (16, 3.8), "Core Ultra 7 155H": (16, 3.6),
    }),
    Platform(2, 6400e6, "avx_vnni", {
        "Core Ultra 9 285K": (24, 4.9), "Core Ultra 7 265K": (20, 4.9),
        "Core Ultra 5 245K": (14, 4.8),
    }),
    Platform(2, 8533e6, "avx_vnni", {"Core Ultra 7 258V": (8, 3.8), "Core Ultra 9 288V": (8, 4.0)}),
    Platform(1, 4800e6, "avx2", {
        "N100": (4, 2.9), "N150": (4, 3.2), "N305": (8, 3.0), "Core i3-N305": (8, 3.0),
    }),
    Platform(4, 3200e6, "avx2", {
        "Threadripper 3970X": (32, 4.0), "Threadripper 3960X": (24, 4.1),
        "Threadripper 3990X": (64, 3.3),
    }),
    Platform(8, 3200e6, "avx2", {
        "Threadripper PRO 5995WX": (64, 3.6), "Threadripper PRO 5975WX": (32, 4.0),
        "Threadripper PRO 5965WX": (24, 4.1), "Threadripper PRO 3995WX": (64, 3.2),
        "EPYC 7742": (64, 3.0), "EPYC 7702": (64, 2.8), "EPYC 7502": (32, 3.0),
        "EPYC 7302": (16, 3.2), "EPYC 7763": (64, 3.1), "EPYC 7713": (64, 2.8),
        "EPYC 7543": (32, 3.2), "EPYC 7443": (24, 3.4), "EPYC 7313": (16, 3.4),
    }),
    Platform(4, 5200e6, "avx512_bf16", {
        "Threadripper 7980X": (64, 3.8), "Threadripper 7970X": (32, 4.6),
        "Threadripper 7960X": (24, 4.8),
    }),
    Platform(8, 5200e6, "avx512_bf16", {
        "Threadripper PRO 7995WX": (96, 3.2), "Threadripper PRO 7985WX": (64, 3.8),
        "Threadripper PRO 7975WX": (32, 4.6), "Threadripper PRO 7965WX": (24, 4.8),
    }),
    Platform(4, 6400e6, "avx512_bf16", {
        "Threadripper 9980X": (64, 4.0), "Threadripper 9970X": (32, 4.7),
        "Threadripper 9960X": (24, 4.9),
    }),
    Platform(8, 6400e6, "avx512_bf16", {
        "Threadripper PRO 9995WX": (96, 3.4), "Threadripper PRO 9985WX": (64, 4.0),
        "Threadripper PRO 9975WX": (32, 4.7), "Threadripper PRO 9965WX": (24, 4.9),
    }),
    Platform(12, 4800e6, "avx512_bf16", {
        "EPYC 9654": (96, 3.3), "EPYC 9554": (64, 3.6), "EPYC 9534": (64, 3.4),
        "EPYC 9454": (48, 3.6), "EPYC 9374F": (32, 4.1), "EPYC 9354": (32, 3.7),
        "EPYC 9334": (32, 3.6), "EPYC 9274F": (24, 4.1), "EPYC 9254": (24, 3.9),
        "EPYC 9124": (16, 3.6), "EPYC 9684X": (96, 3.2), "EPYC 9754": (128, 3.0),
    }),
    Platform(12, 6000e6, "avx512_bf16", {
        "EPYC 9965": (192, 3.0), "EPYC 9755": (128, 3.6), "EPYC 9655": (96, 3.9),
        "EPYC 9575F": (64, 4.5), "EPYC 9555": (64, 4.0), "EPYC 9455": (48, 4.1),
        "EPYC 9375F": (32, 4.5), "EPYC 9355": (32, 4.2), "EPYC 9255": (24, 4.1),
        "EPYC 9135": (16, 4.1),
    }),
    Platform(8, 3200e6, "avx512", {
        "Xeon Platinum 8380": (40, 3.0), "Xeon Platinum 8360Y": (36, 3.1),
        "Xeon Gold 6348": (28, 3.4), "Xeon Gold 6330": (28, 2.6),
    }),
    Platform(8, 4800e6, "amx", {
        "Xeon Platinum 8480": (56, 3.0), "Xeon Platinum 8468": (48, 3.1),
        "Xeon Gold 6430": (32, 2.6), "Xeon w9-3495X": (56, 2.9),
    }),
    Platform(8, 5600e6, "amx", {
        "Xeon Platinum 8592": (64, 2.9), "Xeon Platinum 8558": (48, 3.0),
        "Xeon Gold 6530": (32, 2.7),
    }),
    Platform(8, 6400e6, "amx", {"Xeon 6787P": (86, 3.2), "Xeon 6767P": (64, 3.6)}),
    Platform(12, 6400e6, "amx", {
        "Xeon 6980P": (128, 3.2), "Xeon 6979P": (120, 3.2), "Xeon 6972P": (96, 3.5),
    }),
    Platform(8, 3200e6, "neon", {"Ampere Altra": (80, 3.0), "Ampere Altra Max": (128, 3.0)}),
    Platform(8, 5200e6, "neon", {"AmpereOne A192-32X": (192, 3.2)}),
    Platform(8, 8533e6, "neon", {"Grace": (72, 3.1)}),
)  # fmt: skip


class Processor(NamedTuple):
    """A processor; `path` names the kernels that it can run, of `mrs.devices.cpu_path`."""

    name: str
    bytes_per_s: float
    cores: int
    clock_hz: float
    path: str


def published_processor(name: str) -> Processor | None:
    """The processor that a person or the operating system calls so; None for an unknown one."""
    wanted = _key(name)
    known = _processors()
    within = [key for key in known if key in wanted]
    best = max(within, key=len, default=None)
    # A number that goes on is that of another processor: 7950X3D is no 7950X. P is for computers
    # with one socket, and F without graphics.
    if best is None or not re.match(r"[pf]?(?!\w)", wanted[wanted.index(best) + len(best) :]):
        return None
    return known[best]


def near_processors(text: str) -> list[str]:
    """Names of processors that resemble `text`, the nearest first."""
    from difflib import get_close_matches

    match = _WITH_SIZE.fullmatch(text.strip())
    known, wanted = _processors(), _key(match[1] if match else text)
    within = [key for key in known if wanted and wanted in key]
    close = get_close_matches(wanted, known, n=MOST_NEAR, cutoff=CLOSE)
    return list(dict.fromkeys(known[key].name for key in within + close))[:MOST_NEAR]


def with_memory(text: str) -> tuple[Processor, int] | None:
    """The processor and the bytes of memory of `EPYC 9654 768GB`; None if that says neither."""
    match = _WITH_SIZE.fullmatch(text.strip())
    processor = published_processor(match[1]) if match else None
    return (processor, int(match[2]) * GIB) if match and processor else None


@cache
def _processors() -> dict[str, Processor]:
    found = {}
    for each in PLATFORMS:
        bytes_per_s = CHANNEL_BYTES * each.channels * each.transfers_per_s
        for name, (cores, ghz) in each.processors.items():
            found[_key(name)] = Processor(name, bytes_per_s, cores, ghz * 1e9, each.path)
    return found


def _key(name: str) -> str:
    """What is left of a name without maker, generation, number of cores, case and spaces."""
    return _MAKER.sub("", name).casefold()
