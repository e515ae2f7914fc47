"""GPUs as their makers publish them: how much memory they have and how fast it is."""

from __future__ import annotations

import re
from typing import NamedTuple

from mrs.units import GIB

#: GB/s of the memory; 10^12 instructions a second of all lanes at the boost clock; 10^12 operations
#: a second of dense matrix products of 16-bit numbers with sums in 32 bits; and the sizes of the
#: memory in GiB that the model is sold with. The sizes are those that the driver reports
#: where it keeps some for error correction. The names are parts of those that drivers report; the
#: longest that a name contains counts.
PUBLISHED: dict[str, tuple[float, ...]] = {
    "B200": (8000, 35, 2250, 179),
    "H200": (4800, 33.5, 989, 140.4),
    "GH200": (4000, 33.5, 989, 96),
    "H100": (3350, 33.5, 989, 79.6),
    "H100 NVL": (3900, 30.2, 835, 94),
    "H100 PCIe": (2000, 25.6, 756, 79.6),
    "A100": (1555, 19.5, 312, 40),
    "A100-SXM4-80GB": (2039, 19.5, 312, 80),
    "A100 80GB": (1935, 19.5, 312, 80),
    "A800": (1935, 19.5, 312, 80),
    "A40": (696, 18.7, 150, 45),
    "A30": (933, 10.3, 165, 24),
    "A10": (600, 15.6, 125, 22.5),
    "A10G": (600, 17.5, 70, 22.5),
    "L40": (864, 45.3, 181, 45),
    "L40S": (864, 45.8, 362, 45),
    "L4": (300, 15.1, 121, 22.5),
    "T4": (320, 8.1, 65, 15),
    "V100": (900, 15.7, 125, 16, 32),
    "P100": (732, 5.3, 19, 16),
    "P40": (346, 5.9, 12, 24),
    "GB10": (273, 15.4, 125, 119),
    "RTX PRO 6000": (1792, 62.6, 504, 96),
    "RTX 6000 Ada": (960, 45.5, 364, 48),
    "RTX 4000 Ada": (360, 13.4, 107, 20),
    "RTX 5000 Ada": (576, 32.6, 261, 32),
    "RTX A6000": (768, 19.4, 155, 48),
    "RTX A5000": (768, 13.9, 111, 24),
    "RTX A4000": (448, 9.6, 77, 16),
    "RTX 5090": (1792, 52.4, 209, 32),
    "RTX 5080": (960, 28.1, 113, 16),
    "RTX 5070": (672, 15.4, 62, 12),
    "RTX 5070 Ti": (896, 22.0, 88, 16),
    "RTX 5060": (448, 9.6, 38, 8),
    "RTX 5060 Ti": (448, 11.8, 47, 8, 16),
    "RTX 4090": (1008, 41.3, 165, 24),
    "RTX 4080": (717, 24.4, 97, 16),
    "RTX 4080 SUPER": (736, 26.1, 104, 16),
    "RTX 4070": (504, 14.6, 58, 12),
    "RTX 4070 SUPER": (504, 17.7, 71, 12),
    "RTX 4070 Ti": (504, 20.0, 80, 12),
    "RTX 4070 Ti SUPER": (672, 22.0, 88, 16),
    "RTX 4060": (272, 7.6, 30, 8),
    "RTX 4060 Ti": (288, 11.0, 44, 8, 16),
    "RTX 3090": (936, 17.8, 71, 24),
    "RTX 3090 Ti": (1008, 20.0, 80, 24),
    "RTX 3080": (760, 14.9, 60, 10),
    "RTX 3080 Ti": (912, 17.0, 68, 12),
    "RTX 3070": (448, 10.2, 41, 8),
    "RTX 3070 Ti": (608, 10.9, 43, 8),
    "RTX 3060": (360, 6.4, 25, 12),
    "RTX 2080 Ti": (616, 13.4, 54, 11),
    "GTX 1080 Ti": (484, 5.7, 11, 11),
    "Apple M1": (68, 1.3, 2.6, 8, 16),
    "Apple M1 Pro": (200, 2.6, 5.3, 16, 32),
    "Apple M1 Max": (400, 5.2, 10.6, 32, 64),
    "Apple M1 Ultra": (800, 10.6, 21, 64, 128),
    "Apple M2": (100, 1.8, 3.6, 8, 16, 24),
    "Apple M2 Pro": (200, 3.4, 6.8, 16, 32),
    "Apple M2 Max": (400, 6.8, 13.6, 32, 64, 96),
    "Apple M2 Ultra": (800, 13.6, 27.2, 64, 128, 192),
    "Apple M3": (100, 2.0, 4.1, 8, 16, 24),
    "Apple M3 Pro": (150, 3.7, 7.4, 18, 36),
    "Apple M3 Max": (400, 8.2, 16.4, 48, 64, 128),
    "Apple M3 Max 30-core": (300, 6.1, 12.3, 36, 96),
    "Apple M3 Ultra": (819, 16.4, 32.8, 96, 256, 512),
    "Apple M4": (120, 2.3, 4.6, 16, 24, 32),
    "Apple M4 Pro": (273, 4.6, 9.2, 24, 48, 64),
    "Apple M4 Max": (546, 9.2, 18.4, 48, 64, 128),
    "Apple M4 Max 32-core": (410, 7.4, 14.7, 36),
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
    instructions_per_s: float
    operations_per_s: float

    @property
    def is_apple(self) -> bool:
        return self.name.startswith("Apple")

    @property
    def is_unified(self) -> bool:
        return UNIFIED.match(self.name) is not None


def published_card(name: str) -> Card | None:
    """A GPU of that name as drivers report it; None for one that is not in the table.

    Neither laptop versions nor slices of a card have the speed of the name they share.
    """
    if re.search(r"laptop|max-q|\bMIG\b", name, re.IGNORECASE):
        return None
    matching = [
        part
        for part in PUBLISHED
        if re.search(rf"\b{re.escape(part)}(?![0-9])", name, re.IGNORECASE)
    ]
    return _card(max(matching, key=len)) if matching else None


def usual_card(memory_bytes: int, is_apple: bool) -> Card:
    """A card of the middle speed among those with about so much memory, or with the nearest size.

    On Apple computers, the memory is that of the whole machine.
    """
    cards = [card for card in _cards() if card.is_apple == is_apple]

    def off(card: Card) -> float:
        return abs(card.memory_bytes - memory_bytes)

    most = max(SIZE_TOLERANCE * memory_bytes, min(map(off, cards)))
    near = sorted((card.bytes_per_s, card) for card in cards if off(card) <= most)
    return near[len(near) // 2][1]


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
    return [_card(name, size) for name, (_, _, _, *sizes) in PUBLISHED.items() for size in sizes]


def _card(name: str, size_gib: float | None = None) -> Card:
    """The card of an entry of the table, with its first size if none is given."""
    gb_per_s, instructions, operations, *sizes = PUBLISHED[name]
    shown = f"{name} {size_gib:.0f}GB" if size_gib and len(sizes) > 1 else name
    size_bytes = int((size_gib or sizes[0]) * GIB)
    return Card(shown, size_bytes, gb_per_s * 1e9, instructions * 1e12, operations * 1e12)


def _key(name: str) -> str:
    """What is left of a name without its maker, case, spaces and hyphens."""
    return _MAKER.sub("", name).casefold().replace("gib", "gb")
