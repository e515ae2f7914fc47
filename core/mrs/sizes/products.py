"""What products with packed matrices take; numbers without a reason are those of native/."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mrs.formats import FORMATS
from mrs.sizes.packed import GROUP_ROWS, UNIT_COLUMNS

#: Tokens from which torch multiplies decoded weights, by path. Measured: only matrix units (AMX)
#: beat the library's products, and anything beats portable C.
DECODED_TOKENS = {"amx": 32, "portable": 4}
#: Decoded weights that stay in the second- or third-level cache until they are used.
DECODED_TILE_BYTES = 4 << 20

#: Tokens that a panel of activations can have, and the most on paths with 16 lanes and on others.
PANEL_WIDTHS = (1, 2, 4, 8, 12, 16)
MOST_PANEL_TOKENS = {"amx": 16, "avx512_bf16": 16, "avx512": 16}
MOST_PANEL_TOKENS_ELSEWHERE = 8
LINE_BYTES = 64
#: More tokens than this are multiplied as pairs of bf16, by paths that have units for them.
PAIRED_TOKENS = 4
PAIRED_PATHS = ("amx", "avx512_bf16")
#: Weights with one scale and one minimum in a unit, which read activations alike.
AFFINE_FORMATS = ("Q4_1", "Q5_1", "Q4_K", "Q5_K")

#: Some paths requantize weights of less than 8 bits to tiles, for so many tokens and more.
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
    """How some packed weights read activations: in panels of `width` tokens."""

    name: str
    width: int
    panel_bytes: int


def decodes(path: str, tokens: int) -> bool:
    """Whether torch multiplies so many tokens with decoded weights."""
    return tokens >= DECODED_TOKENS.get(path, tokens + 1)


def decoded_number_bytes(path: str) -> int:
    """Bytes of a decoded weight: bf16 for matrix units, and otherwise float32."""
    return 2 if path == "amx" else 4


def decoded_tile_rows(number_bytes: int, columns: int) -> int:
    """Rows that are decoded together: whole groups."""
    return max(DECODED_TILE_BYTES // (number_bytes * columns) // GROUP_ROWS, 1) * GROUP_ROWS


def decoded_workspace_bytes(path: str, tokens: int, columns: int, rows: int) -> int:
    """Beside the result: what torch takes in its product comes on top.

    A tile is decoded while the one before is still there, or its product is. Activations are cast
    to bf16.
    """
    number = decoded_number_bytes(path)
    tile_rows = min(rows, decoded_tile_rows(number, columns))
    next_rows = min(rows - tile_rows, tile_rows)
    cast = tokens * columns * number if number == 2 else 0
    return cast + number * (tile_rows * columns + max(next_rows * columns, tokens * tile_rows))


def packed_workspace_bytes(
    path: str, threads: int, matrices: Sequence[tuple[str, int]], tokens: int, columns: int
) -> int:
    """Of float32 activations times `matrices` of these formats and rows in one region of threads.

    Activations are laid out once for matrices that read them alike. Each thread has a tile of
    requantized weights, and sums of some tiles and panels.
    """
    layouts = [_layout(path, name, tokens, columns) for name, _ in matrices]
    laid = sum(-(-tokens // each.width) * each.panel_bytes for each in set(layouts))
    tiles = [
        -(-rows // _TILE_ROWS)
        for (_, rows), layout in zip(matrices, layouts, strict=True)
        if layout.name == "wide"
    ]
    if not tiles:
        return laid
    tasks = sum(-(-rows // _TILE_ROWS) for _, rows in matrices)
    piece = tasks if threads == 1 else max(tasks // (2 * threads), 1)
    sums = min(piece, max(tiles), TILES) * min(-(-tokens // PROMPT_TOKENS), PANELS) * _SUMS_BYTES
    return laid + min(threads, tasks) * (_TILE_BYTES + sums)


def _layout(path: str, name: str, tokens: int, columns: int) -> Layout:
    """Codes of quantized activations take a byte, and 12 or 2 more each; those for plain weights
    are bf16 or float32, whichever the path multiplies.
    """
    is_quantized = FORMATS[name].is_quantized
    is_wide = path in TILED_PATHS and tokens >= MIN_PROMPT_TOKENS and columns % SPAN_COLUMNS == 0
    if is_wide and is_quantized and name != "Q8_0":
        return _panels("wide", PROMPT_TOKENS, columns // SPAN_COLUMNS * (SPAN_COLUMNS + 8))
    width = panel_width(path, tokens)
    units = -(-columns // UNIT_COLUMNS)
    if is_quantized:
        kind = "affine" if name in AFFINE_FORMATS else name
        return _panels(kind, width, units * (UNIT_COLUMNS + 12))
    if name == "BF16" and path in PAIRED_PATHS and tokens > PAIRED_TOKENS:
        return _panels("pairs", width, units * UNIT_COLUMNS * 2)
    return _panels("float32", width, units * UNIT_COLUMNS * 4)


def panel_width(path: str, tokens: int) -> int:
    """Tokens of a panel: as few panels as possible, each no wider than they need to be."""
    panels = -(-tokens // MOST_PANEL_TOKENS.get(path, MOST_PANEL_TOKENS_ELSEWHERE))
    return next(width for width in PANEL_WIDTHS if width * panels >= tokens)


def _panels(name: str, width: int, token_bytes: int) -> Layout:
    return Layout(name, width, -(-width * token_bytes // LINE_BYTES) * LINE_BYTES)
