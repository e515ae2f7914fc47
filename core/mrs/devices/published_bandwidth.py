"""GPUs as their makers publish them: how much memory they have and how fast it is."""

from __future__ import annotations

import re
from typing import NamedTuple

from mrs.units import GIB

#: GB/s, and the sizes of the memory in GiB that the model is sold with. The sizes are those that
#: the driver reports where it keeps some for error correction. The names are parts of those that
#: drivers report; the longest that a name contains counts.
PUBLISHED: dict[str, tuple[float, ...]] = {
    "B200": (8000, 179),
    "H200": (4800, 140.4),
    "GH200": (4000, 96),
    "H100": (3350, 79.6),
    "H100 NVL": (3900, 94),
    "H100 PCIe": (2000, 79.6),
    "A100": (1555, 40),
    "A100-SXM4-80GB": (2039, 80),
    "A100 80GB": (1935, 80),
    "A800": (1935, 80),
    "A40": (696, 45),
    "A30": (933, 24),
    "A10": (600, 22.5),
    "A10G": (600, 22.5),
    "L40": (864, 45),
    "L40S": (864, 45),
    "L4": (300, 22.5),
    "T4": (320, 15),
    "V100": (900, 16, 32),
    "P100": (732, 16),
    "P40": (346, 24),
    "GB10": (273, 119),
    "RTX PRO 6000": (1792, 96),
    "RTX 6000 Ada": (960, 48),
    "RTX 5000 Ada": (576, 32),
    "RTX A6000": (768, 48),
    "RTX A5000": (768, 24),
    "RTX A4000": (448, 16),
    "RTX 5090": (1792, 32),
    "RTX 5080": (960, 16),
    "RTX 5070": (672, 12),
    "RTX 5070 Ti": (896, 16),
    "RTX 5060": (448, 8),
    "RTX 5060 Ti": (448, 8, 16),
    "RTX 4090": (1008, 24),
    "RTX 4080": (717, 16),
    "RTX 4080 SUPER": (736, 16),
    "RTX 4070": (504, 12),
    "RTX 4070 SUPER": (504, 12),
    "RTX 4070 Ti": (504, 12),
    "RTX 4070 Ti SUPER": (672, 16),
    "RTX 4060": (272, 8),
    "RTX 4060 Ti": (288, 8, 16),
    "RTX 3090": (936, 24),
    "RTX 3090 Ti": (1008, 24),
    "RTX 3080": (760, 10),
    "RTX 3080 Ti": (912, 12),
    "RTX 3070": (448, 8),
    "RTX 3070 Ti": (608, 8),
    "RTX 3060": (360, 12),
    "RTX 2080 Ti": (616, 11),
    "GTX 1080 Ti": (484, 11),
    "Apple M1": (68, 8, 16),
    "Apple M1 Pro": (200, 16, 32),
    "Apple M1 Max": (400, 32, 64),
    "Apple M1 Ultra": (800, 64, 128),
    "Apple M2": (100, 8, 16, 24),
    "Apple M2 Pro": (200, 16, 32),
    "Apple M2 Max": (400, 32, 64, 96),
    "Apple M2 Ultra": (800, 64, 128, 192),
    "Apple M3": (100, 8, 16, 24),
    "Apple M3 Pro": (150, 18, 36),
    "Apple M3 Max": (300, 36, 48, 64, 96, 128),
    "Apple M3 Ultra": (819, 96, 256, 512),
    "Apple M4": (120, 16, 24, 32),
    "Apple M4 Pro": (273, 24, 48, 64),
    "Apple M4 Max": (410, 36, 48, 64, 128),
}
#: These share their memory with the CPU; the sizes are those of the whole computer.
UNIFIED = re.compile(r"Apple|GB10")
#: How far the GB of a name may be from the GiB that the driver reports: 24GB for 22.5.
SIZE_TOLERANCE = 0.1
MOST_NEAR = 4
_MAKER = re.compile(r"nvidia|geforce|apple|tesla|quadro|[\s-]", re.IGNORECASE)
_SIZE = re.compile(r"(.*?)\s*([0-9]+)\s*Gi?B?", re.IGNORECASE)


class Card(NamedTuple):
    """One GPU with one size of memory."""

    name: str
    memory_bytes: int
    bytes_per_s: float

    @property
    def is_apple(self) -> bool:
        return self.name.startswith("Apple")

    @property
    def is_unified(self) -> bool:
        return UNIFIED.match(self.name) is not None


def published_bandwidth(name: str) -> float | None:
    """Bytes a second for a GPU of that name; None for one that is not in the table.

    Neither laptop versions nor slices of a card have the bandwidth of the name they share.
    """
    if re.search(r"laptop|max-q|\bMIG\b", name, re.IGNORECASE):
        return None
    matching = [
        part
        for part in PUBLISHED
        if re.search(rf"\b{re.escape(part)}(?![0-9])", name, re.IGNORECASE)
    ]
    return PUBLISHED[max(matching, key=len)][0] * 1e9 if matching else None


def find_card(text: str) -> Card | None:
    """The card that a person means by `RTX 4090`, `nvidia a100 80gb` or `M4 Max 64GB`.

    None for an unknown name, and for one that is sold with several sizes where none is named.
    """
    cards = {_key(card.name): card for card in _cards()}
    if _key(text) in cards:
        return cards[_key(text)]
    match = _SIZE.fullmatch(text.strip())
    card = cards.get(_key(match[1])) if match else None
    if match is None or card is None:
        return None
    off = abs(int(match[2]) * GIB - card.memory_bytes)
    return card if off <= SIZE_TOLERANCE * card.memory_bytes else None


def near_names(text: str) -> list[str]:
    """Names of cards that resemble `text`, the nearest first."""
    from difflib import get_close_matches

    names = {_key(card.name): card.name for card in _cards()}
    wanted = _key(text)
    within = [key for key in names if wanted and wanted in key]
    close = get_close_matches(wanted, names, n=MOST_NEAR)
    return [names[key] for key in dict.fromkeys(within + close)][:MOST_NEAR]


def _cards() -> list[Card]:
    """All cards; those with several sizes have them in their names."""
    return [
        Card(f"{name} {size:.0f}GB" if len(sizes) > 1 else name, int(size * GIB), speed * 1e9)
        for name, (speed, *sizes) in PUBLISHED.items()
        for size in sizes
    ]


def _key(name: str) -> str:
    """What is left of a name without its maker, case, spaces and hyphens."""
    return _MAKER.sub("", name).casefold().replace("gib", "gb")
