"""Memory bandwidths of GPUs as their makers publish them."""

from __future__ import annotations

import re

#: GB/s by a part of the name; the longest part that a name contains counts.
PUBLISHED_GB_PER_S: dict[str, float] = {
    "B200": 8000,
    "H200": 4800,
    "GH200": 4000,
    "H100": 3350,
    "H100 NVL": 3900,
    "H100 PCIe": 2000,
    "A100": 1555,
    "A100-SXM4-80GB": 2039,
    "A100 80GB": 1935,
    "A800": 1935,
    "A40": 696,
    "A30": 933,
    "A10": 600,
    "L40": 864,
    "L4": 300,
    "T4": 320,
    "V100": 900,
    "P100": 732,
    "P40": 346,
    "GB10": 273,
    "RTX PRO 6000": 1792,
    "RTX 6000 Ada": 960,
    "RTX 5000 Ada": 576,
    "RTX A6000": 768,
    "RTX A5000": 768,
    "RTX A4000": 448,
    "RTX 5090": 1792,
    "RTX 5080": 960,
    "RTX 5070": 672,
    "RTX 5070 Ti": 896,
    "RTX 5060": 448,
    "RTX 4090": 1008,
    "RTX 4080": 717,
    "RTX 4080 SUPER": 736,
    "RTX 4070": 504,
    "RTX 4070 Ti SUPER": 672,
    "RTX 4060": 272,
    "RTX 4060 Ti": 288,
    "RTX 3090": 936,
    "RTX 3090 Ti": 1008,
    "RTX 3080": 760,
    "RTX 3080 Ti": 912,
    "RTX 3070": 448,
    "RTX 3070 Ti": 608,
    "RTX 3060": 360,
    "RTX 2080 Ti": 616,
    "GTX 1080 Ti": 484,
    "Apple M1": 68,
    "Apple M1 Pro": 200,
    "Apple M1 Max": 400,
    "Apple M1 Ultra": 800,
    "Apple M2": 100,
    "Apple M2 Pro": 200,
    "Apple M2 Max": 400,
    "Apple M2 Ultra": 800,
    "Apple M3": 100,
    "Apple M3 Pro": 150,
    "Apple M3 Max": 300,
    "Apple M3 Ultra": 819,
    "Apple M4": 120,
    "Apple M4 Pro": 273,
    "Apple M4 Max": 410,
}


def published_bandwidth(name: str) -> float | None:
    """Bytes a second for a GPU of that name; None for one that is not in the table.

    Neither laptop versions nor slices of a card have the bandwidth of the name they share.
    """
    if re.search(r"laptop|max-q|\bMIG\b", name, re.IGNORECASE):
        return None
    matching = [
        part
        for part in PUBLISHED_GB_PER_S
        if re.search(rf"\b{re.escape(part)}(?![0-9])", name, re.IGNORECASE)
    ]
    return PUBLISHED_GB_PER_S[max(matching, key=len)] * 1e9 if matching else None
