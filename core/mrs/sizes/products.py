"""Workspace of products with packed matrices. Constants without a reason are those of native/."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mrs.formats import FORMATS
from mrs.sizes.packed_layout import GROUP_ROWS, UNIT_COLUMNS

#: From this many tokens on, torch multiplies decoded weights instead. Measured: only matrix units
#: (AMX) are faster than the library, and everything is faster than portable C.
DECODED_TOKENS = {"amx": 32, "portable": 4}
#: A tile of decoded weights stays in the L2 or L3 cache until it is multiplied.
DECODED_TILE_BYTES = 4 << 20

#: Possible tokens per panel of activations; the most on paths with 16 lanes and on others.
PANEL_WIDTHS = (1, 2, 4, 8, 12, 16)
MOST_PANEL_TOKENS = {"amx": 16, "avx512_bf16": 16, "avx512": 16}
MOST_PANEL_TOKENS_ELSEWHERE = 8
LINE_BYTES = 64
#: Paths with bf16 units multiply more tokens than this as pairs of bf16.
PAIRED_TOKENS = 4
PAIRED_PATHS = ("amx", "avx512_bf16")
#: Formats with one scale and one minimum per unit; they read the same panels of activations.
AFFINE_FORMATS = ("Q4_1", "Q5_1", "Q4_K", "Q5_K")

#: These paths requantize tiles of weights of less than 8 bits to int8, from MIN_PROMPT_TOKENS on.
TILED_PATHS = ("amx", "avx512_bf16", "avx512")
MIN_PROMPT_TOKENS = 17
PROMPT_TOKENS = 12
SPAN_COLUMNS = 128
TILE_GROUPS = 2
TILE_COLUMNS = 512
TILES = 8
PANELS = 48
_TILE_ROWS = TILE_GROUPS * GROUP_ROWS
_TILE_BYTES = TILE_COLUMNS // SPAN_COLUMNS * _TILE_ROWS * (SPAN_COLUMNS + 4)
_SUMS_BYTES = 4 * _TILE_ROWS * PROMPT_TOKENS


class Layout(NamedTuple):
    """Layout of the packed activations for one kind of weights: panels of `width` tokens."""

    name: str
    width: int
    panel_bytes: int


def decodes(path: str, tokens: int) -> bool:
    """Whether torch multiplies this many tokens with decoded weights."""
    return tokens >= DECODED_TOKENS.get(path, tokens + 1)


def decoded_value_bytes(path: str) -> int:
    """Bytes of a decoded weight: 2 (bf16) for matrix units, otherwise 4 (float32)."""
    return 2 if path == "amx" else 4


def decoded_tile_rows(value_bytes: int, columns: int) -> int:
    """Rows of a tile that is decoded at once: whole groups."""
    return max(DECODED_TILE_BYTES // (value_bytes * columns) // GROUP_ROWS, 1) * GROUP_ROWS


def decoded_workspace_bytes(path: str, tokens: int, columns: int, rows: int) -> int:
    """Workspace of a product with decoded weights, without the result and torch's own workspace.

    throughout   activations cast to bf16 (matrix units only) + one decoded tile
    plus the larger of
      decode     the next tile
      multiply   the product of one tile
    """
    value_bytes = decoded_value_bytes(path)
    tile_rows = min(rows, decoded_tile_rows(value_bytes, columns))
    next_rows = min(rows - tile_rows, tile_rows)
    cast = tokens * columns * value_bytes if value_bytes == 2 else 0
    return cast + value_bytes * (tile_rows * columns + max(next_rows * columns, tokens * tile_rows))


def packed_workspace_bytes(
    path: str, threads: int, matrices: Sequence[tuple[str, int]], tokens: int, columns: int
) -> int:
    """Workspace of x (tokens, columns) in float32 times some matrices, in one parallel region.

    `matrices` lists formats and rows. Matrices with the same layout share packed activations. Each
    thread has one tile of int8 weights, and the sums of up to TILES tiles times PANELS panels.
    """
    layouts = [_layout(path, name, tokens, columns) for name, _ in matrices]
    packed_bytes = sum(-(-tokens // each.width) * each.panel_bytes for each in set(layouts))
    tiles = [
        -(-rows // _TILE_ROWS)
        for (_, rows), layout in zip(matrices, layouts, strict=True)
        if layout.name == "prompt"
    ]
    if not tiles:
        return packed_bytes
    tasks = sum(-(-rows // _TILE_ROWS) for _, rows in matrices)
    piece = tasks if threads == 1 else max(tasks // (2 * threads), 1)
    sums = min(piece, max(tiles), TILES) * min(-(-tokens // PROMPT_TOKENS), PANELS) * _SUMS_BYTES
    return packed_bytes + min(threads, tasks) * (_TILE_BYTES + sums)


def _layout(path: str, name: str, tokens: int, columns: int) -> Layout:
    """The layout of activations for weights of this format.

    weights            activations
    quantized, wide    int8, and 8 bytes per SPAN_COLUMNS
    quantized          int8, and 12 bytes per UNIT_COLUMNS
    F16, BF16          bf16 or float32, as the path multiplies them
    """
    is_quantized = FORMATS[name].is_quantized
    is_prompt = path in TILED_PATHS and tokens >= MIN_PROMPT_TOKENS and columns % SPAN_COLUMNS == 0
    if is_prompt and is_quantized and name != "Q8_0":
        return _panels("prompt", PROMPT_TOKENS, columns // SPAN_COLUMNS * (SPAN_COLUMNS + 8))
    width = panel_width(path, tokens)
    units = -(-columns // UNIT_COLUMNS)
    if is_quantized:
        kind = "affine" if name in AFFINE_FORMATS else name
        return _panels(kind, width, units * (UNIT_COLUMNS + 12))
    if name == "BF16" and path in PAIRED_PATHS and tokens > PAIRED_TOKENS:
        return _panels("pairs", width, units * UNIT_COLUMNS * 2)
    return _panels("float32", width, units * UNIT_COLUMNS * 4)


def panel_width(path: str, tokens: int) -> int:
    """Tokens per panel: as few panels as possible, each as narrow as possible."""
    panels = -(-tokens // MOST_PANEL_TOKENS.get(path, MOST_PANEL_TOKENS_ELSEWHERE))
    return next(width for width in PANEL_WIDTHS if width * panels >= tokens)


def _panels(name: str, width: int, token_bytes: int) -> Layout:
    return Layout(name, width, -(-width * token_bytes // LINE_BYTES) * LINE_BYTES)
