"""GPUs as their makers publish them: how much memory they have and how fast it is."""

from __future__ import annotations

import re
from functools import cache
from typing import Literal, NamedTuple

from mrs.devices.apple import working_set_bytes
from mrs.units import GIB

Maker = Literal["NVIDIA", "AMD", "Intel", "Apple"]
Table = dict[str, tuple[float, ...]]

#: GB/s of the memory; 10^12 instructions a second of all lanes at the boost clock; 10^12 operations
#: a second of dense matrix products of 16-bit numbers with sums in 32 bits; and the sizes of the
#: memory in GiB that the model is sold with. The sizes are those that the driver reports
#: where it keeps some for error correction. The names are parts of those that drivers report; the
#: longest that a name contains counts. From the makers' data sheets and product pages.
NVIDIA: Table = {
    "B300": (8000, 37, 2500, 268),
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
    "RTX PRO 5000": (1344, 36, 287, 48, 72),
    "RTX PRO 4500": (896, 27.5, 220, 32),
    "RTX PRO 4000": (672, 23, 187, 24),
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
    "RTX 5050": (320, 6.6, 26, 8),
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
    "RTX 3060 Ti": (448, 8.1, 32, 8),
    "RTX 3050": (224, 4.5, 18, 8),
    "TITAN RTX": (672, 8.2, 65, 24),
    "RTX 2080 Ti": (616, 13.4, 54, 11),
    "RTX 2080 SUPER": (496, 5.6, 45, 8),
    "RTX 2080": (448, 5.0, 40, 8),
    "RTX 2070": (448, 3.7, 30, 8),
    "RTX 2060": (336, 3.2, 26, 6, 12),
    "GTX 1080 Ti": (484, 5.7, 11, 11),
}
#: A processor with a GPU stands here with the sizes of its computers' memory.
AMD: Table = {
    "MI355X": (8000, 39.3, 2500, 288),
    "MI350X": (8000, 36.0, 2300, 288),
    "MI325X": (6000, 40.9, 1307, 256),
    "MI300X": (5300, 40.9, 1307, 192),
    "MI210": (1638, 11.3, 181, 64),
    "MI100": (1229, 11.5, 185, 32),
    "MI50": (1024, 6.6, 26, 16, 32),
    "AI PRO R9700": (640, 12.0, 191, 32),
    "PRO W7900": (864, 15.3, 122, 48),
    "PRO W7800": (576, 11.3, 90, 32),
    "PRO W7700": (576, 7.1, 57, 16),
    "RX 9070 XT": (640, 12.2, 195, 16),
    "RX 9070": (640, 9.0, 145, 16),
    "RX 9060 XT": (320, 6.4, 103, 8, 16),
    "RX 7900 XTX": (960, 15.4, 123, 24),
    "RX 7900 XT": (800, 12.9, 103, 20),
    "RX 7900 GRE": (576, 11.5, 92, 16),
    "RX 7800 XT": (624, 9.3, 75, 16),
    "RX 7700 XT": (432, 8.8, 70, 12),
    "RX 7600 XT": (288, 5.6, 45, 16),
    "RX 7600": (288, 5.4, 44, 8),
    "RX 6950 XT": (576, 11.8, 47, 16),
    "RX 6900 XT": (512, 11.5, 46, 16),
    "RX 6800 XT": (512, 10.4, 42, 16),
    "RX 6800": (512, 8.1, 32, 16),
    "RX 6700 XT": (384, 6.6, 26, 12),
    "RX 5700 XT": (448, 4.9, 20, 8),
    "Radeon VII": (1024, 6.7, 27, 16),
    "Radeon 8060S": (256, 7.4, 59, 64, 96, 128),
    "Ryzen AI Max 395": (256, 7.4, 59, 64, 96, 128),
    "Ryzen AI Max 390": (256, 5.7, 46, 64, 96, 128),
    "Ryzen AI Max 385": (256, 5.7, 46, 32, 64, 96, 128),
}
INTEL: Table = {
    "GPU Max 1550": (3277, 26.2, 839, 128),
    "GPU Max 1100": (1229, 11.1, 352, 48),
    "Arc Pro B70": (608, 11.5, 183, 32),
    "Arc Pro B65": (608, 6.1, 98, 32),
    "Arc Pro B60": (456, 6.1, 98, 24),
    "Arc Pro B50": (224, 5.3, 85, 16),
    "Arc B580": (456, 6.8, 117, 12),
    "Arc B570": (380, 5.8, 101, 10),
    "Arc A770": (560, 8.6, 137, 8, 16),
    "Arc A750": (512, 7.5, 118, 8),
}
APPLE: Table = {
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
    "Apple M5": (153, 2.3, 18, 16, 24, 32),
    "Apple M5 Pro": (307, 4.6, 37, 24, 48, 64),
    "Apple M5 Max": (614, 9.2, 74, 48, 64, 128),
    "Apple M5 Max 32-core": (460, 7.4, 59, 36),
}
MAKERS: dict[Maker, Table] = {"NVIDIA": NVIDIA, "AMD": AMD, "Intel": INTEL, "Apple": APPLE}
PUBLISHED: Table = {name: row for table in MAKERS.values() for name, row in table.items()}
#: What a buyer should know of the makers whose cards have not been tried.
UNTRIED: dict[Maker, str] = {
    "AMD": "mrs has not run on AMD's GPUs yet",
    "Intel": "mrs does not run on Intel's GPUs: the figures say what the card could do",
    "Apple": "mrs has not run on Apple's GPUs yet",
}
#: Computers that are sold under another name than that of their chip.
ALIASES = {
    "DGX Spark": "GB10",
    "Ascent GX10": "GB10",
    "Dell Pro Max with GB10": "GB10",
    "Framework Desktop": "Ryzen AI Max 395",
    "GMKtec EVO-X2": "Ryzen AI Max 395",
    "Strix Halo": "Ryzen AI Max 395",
    "Ryzen AI Max PRO 395": "Ryzen AI Max 395",
}
#: What people leave out before the number of a card.
SERIES = ("", "RTX ", "RX ", "Arc ", "PRO ", "GPU ")
#: These share their memory with the CPU; the sizes are those of the whole computer.
UNIFIED = re.compile(r"Apple|GB10|Ryzen AI Max|Radeon 8060S")
#: How far the GB of a name may be from the GiB that the driver reports: 24GB for 22.5.
SIZE_TOLERANCE = 0.1
MOST_NEAR = 4
#: How alike names must be to be proposed, of 1.
CLOSE = 0.7
_MAKER = re.compile(
    r"nvidia|geforce|tesla|quadro|\bamd\b|radeon(?! vii| 8060s)|instinct|\bintel\b|data center"
    r"|apple|mac ?mini|mac ?studio|imac|macbook(?: pro| air)?|\(tm\)|\(r\)|[\s+-]",
    re.IGNORECASE,
)
_SIZE = re.compile(r"(.*?)\s*([0-9]+)\s*Gi?B?", re.IGNORECASE)


class Card(NamedTuple):
    """One GPU with one size of memory; of unified memory, that of the whole computer."""

    maker: Maker
    name: str
    memory_bytes: int
    bytes_per_s: float
    instructions_per_s: float
    operations_per_s: float

    @property
    def is_apple(self) -> bool:
        return self.maker == "Apple"

    @property
    def usable_bytes(self) -> int:
        """How much of its memory a GPU may use.

        macOS recommends a part of what the computer has, and AMD's drivers give a GPU that shares
        the memory three quarters of it at most.
        """
        if self.is_apple:
            return working_set_bytes(self.memory_bytes)
        is_shared = self.maker == "AMD" and self.is_unified
        return self.memory_bytes * 3 // 4 if is_shared else self.memory_bytes

    @property
    def is_unified(self) -> bool:
        return UNIFIED.match(self.name) is not None


@cache
def published_card(name: str) -> Card | None:
    """A GPU of that name as drivers report it; None for one that is not in the table.

    Neither laptop versions nor slices of a card have the speed of the name they share.
    """
    if re.search(r"laptop|max-q|\bMIG\b", name, re.IGNORECASE):
        return None
    matching = [
        part for part in PUBLISHED if re.search(rf"\b{re.escape(part)}(?!\w)", name, re.IGNORECASE)
    ]
    return _card(max(matching, key=len)) if matching else None


@cache
def usual_card(memory_bytes: int, maker: Maker) -> Card:
    """A card of the middle speed among those with about so much memory, or with the nearest size.

    The memory is what a GPU may use.
    """
    cards = cards_of(maker)

    def off(card: Card) -> float:
        return abs(card.usable_bytes - memory_bytes)

    most = max(SIZE_TOLERANCE * memory_bytes, min(map(off, cards)))
    near = sorted((card.bytes_per_s, card) for card in cards if off(card) <= most)
    return near[len(near) // 2][1]


def find_card(text: str) -> Card | None:
    """The card that a person means by `RTX 4090`, `7900 xtx`, `DGX Spark` or `M4 Max 64GB`.

    None for an unknown name, and for one that is sold with several sizes where none is named.
    """
    if (card := _named(text)) is not None:
        return card
    match = _SIZE.fullmatch(text.strip())
    card = _named(match[1]) or _named(f"{match[1]} {match[2]}GB") if match else None
    if match is None or card is None:
        return None
    off = abs(int(match[2]) * GIB - card.memory_bytes)
    return card if off <= SIZE_TOLERANCE * card.memory_bytes else None


def _named(text: str) -> Card | None:
    """The card of a name, with its size if there are several."""
    known = _keys()
    return next((known[key] for each in SERIES if (key := _key(each + text)) in known), None)


@cache
def _keys() -> dict[str, Card]:
    """All cards by what is left of their names, and of the names of computers that have them."""
    keys = {_key(card.name): card for card in _cards()}
    for alias, name in ALIASES.items():
        keys |= {
            _key(card.name.replace(name, alias)): card
            for card in _cards()
            if card.name.startswith(name)
        }
    return keys


def cards_of(maker: Maker) -> list[Card]:
    """All cards of a maker, with each size of their memory."""
    return [card for card in _cards() if card.maker == maker]


def near_names(text: str) -> list[str]:
    """Names of cards that resemble `text`, the nearest first."""
    from difflib import get_close_matches

    names = {key: card.name for key, card in _keys().items()}
    wanted = _key(text)
    within = [key for key in names if wanted and wanted in key]
    close = get_close_matches(wanted, names, n=MOST_NEAR, cutoff=CLOSE)
    return list(dict.fromkeys(names[key] for key in within + close))[:MOST_NEAR]


@cache
def _cards() -> list[Card]:
    """All cards; those with several sizes have them in their names."""
    return [_card(name, size) for name, (_, _, _, *sizes) in PUBLISHED.items() for size in sizes]


def _card(name: str, size_gib: float | None = None) -> Card:
    """The card of an entry of the table, with its first size if none is given."""
    gb_per_s, instructions, operations, *sizes = PUBLISHED[name]
    shown = f"{name} {size_gib:.0f}GB" if size_gib and len(sizes) > 1 else name
    size_bytes = int((size_gib or sizes[0]) * GIB)
    maker = next(maker for maker, table in MAKERS.items() if name in table)
    return Card(maker, shown, size_bytes, gb_per_s * 1e9, instructions * 1e12, operations * 1e12)


def _key(name: str) -> str:
    """What is left of a name without its maker, case, spaces and hyphens."""
    return _MAKER.sub("", name).casefold().replace("gib", "gb")
