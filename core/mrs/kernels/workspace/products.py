"""Workspace of products with packed matrices. Constants without a reason are those of native/."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mrs.formats import GROUP_SIZES, INT_BITS
from mrs.kernels.packed_layout import FLOAT_FORMATS, UNIT_COLUMNS

#: Most tokens of a panel of activations: on paths with 16 lanes, whose kernel for many tokens
#: serves more than NARROW_TOKENS tokens and integer codes; and on other paths.
WIDE_PATHS = ("amx", "avx512_bf16", "avx512")
WIDE_TOKENS = 128
NARROW_TOKENS = 16
#: On these paths float formats but F32 have such panels too, of whole tiles of tokens.
TILED_PATHS = ("amx",)
TILE_TOKENS = 16
LINE_BYTES = 64
#: Up to this many activations, if they fit packed, are packed by each thread for itself, in memory
#: that it keeps: `mrs.plan.memory.overhead` counts it with the thread.
OWN_VALUES = 16384
OWN_BYTES = 128 << 10
#: These paths multiply bf16 weights with activations that are rounded to bf16.
PAIRED_PATHS = ("amx", "avx512_bf16")
#: Formats with one scale and one minimum per unit; they read the same panels of activations.
AFFINE_FORMATS = (
    "Q4_1", "Q5_1", "Q4_K", "Q5_K", *(f"INT{bits}_{n}" for bits in INT_BITS for n in GROUP_SIZES),
)  # fmt: skip


class PanelLayout(NamedTuple):
    """Layout of the packed activations for one kind of weights: panels of `width` tokens."""

    name: str
    width: int
    panel_bytes: int


def packed_workspace_bytes(
    path: str, matrices: Sequence[str], tokens: int, columns: int, residuals: Sequence[str] = ()
) -> int:
    """Workspace of x (tokens, columns) in float32 times some matrices, in one parallel region.

    The arguments are those of `panels_bytes`.
    """
    return shared_bytes(tokens, columns, panels_bytes(path, matrices, tokens, columns, residuals))


def shared_bytes(tokens: int, columns: int, bytes_: int) -> int:
    """What a product allocates for its packed activations, which take `bytes_`."""
    return 0 if tokens * columns <= OWN_VALUES and bytes_ <= OWN_BYTES else bytes_


def panels_bytes(
    path: str, matrices: Sequence[str], tokens: int, columns: int, residuals: Sequence[str] = ()
) -> int:
    """Packed activations x (tokens, columns) for some matrices that read the same columns.

    `matrices` lists their formats, and `residuals` those of matrices that are multiplied with two
    rows for each token if that is rounded. Matrices with the same layout share packed activations.
    """
    rows = [(name, tokens) for name in matrices]
    rows += [(name, tokens * (1 + rounds_activations(path, name))) for name in residuals]
    layouts = {(_layout(path, name, count, columns), count) for name, count in rows}
    return sum(-(-count // layout.width) * layout.panel_bytes for layout, count in layouts)


def rounds_activations(path: str, name: str) -> bool:
    """Whether a path multiplies weights of this format with activations of 8 significant bits."""
    return name not in FLOAT_FORMATS or (name == "BF16" and path in PAIRED_PATHS)


def _layout(path: str, name: str, tokens: int, columns: int) -> PanelLayout:
    """The layout of activations for weights of this format.

    weights          activations
    integers         int8, and 12 bytes per UNIT_COLUMNS
    F16, BF16, F32 … bf16, float32 or two bf16, as the path multiplies them
    """
    has_codes = name not in FLOAT_FORMATS
    width = panel_width(path, tokens, name)
    units = -(-columns // UNIT_COLUMNS)
    if has_codes:
        kind = "affine" if name in AFFINE_FORMATS else name
        return _panels(kind, width, units * (UNIT_COLUMNS + 12))
    if rounds_activations(path, name):
        return _panels("pairs", width, units * UNIT_COLUMNS * 2)
    return _panels("values", width, units * UNIT_COLUMNS * 4)


def panel_width(path: str, tokens: int, name: str) -> int:
    """Tokens per panel: as few panels as possible, each as narrow as possible."""
    most, step = NARROW_TOKENS if path in WIDE_PATHS else NARROW_TOKENS // 2, 4
    if path in WIDE_PATHS and tokens > most:
        if name not in FLOAT_FORMATS:
            most = WIDE_TOKENS
        elif path in TILED_PATHS and name != "F32":
            most, step = WIDE_TOKENS, TILE_TOKENS
    each = -(-tokens // -(-tokens // most))
    return -(-each // step) * step if each > 2 else each


def _panels(name: str, width: int, token_bytes: int) -> PanelLayout:
    return PanelLayout(name, width, -(-width * token_bytes // LINE_BYTES) * LINE_BYTES)
