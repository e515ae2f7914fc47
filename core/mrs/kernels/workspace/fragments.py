"""Sizes of matrices in fragment order, and the workspace of their products. Without torch."""

from __future__ import annotations

#: Rows of a matrix that lie together, of which a block of threads computes as many as a group has.
TILE_ROWS, GROUP_ROWS = 16, 128
#: Columns of a tile of weights.
TILE_COLUMNS = 256
#: The columns of a block of each format that the kernels multiply.
BLOCK_COLUMNS = {"Q4_K": 256, "Q5_K": 256, "Q6_K": 256, "Q8_0": 32, "Q4_0": 32}
#: Tokens of a launch. A GPU with little shared memory needs several passes over the weights for
#: them. More tokens are multiplied by torch, with panels of rows of this many weights: 32 MB of
#: bf16, which stay in the second-level cache of an H100 and have work for all of it.
MOST_TOKENS, PANEL_WEIGHTS = 64, 1 << 24
TOKEN_TILE = 8
#: Blocks that a launch should have, two on each of the 132 multiprocessors of an H100. It is the
#: same for every GPU, and so are the parts of columns whose sums are added up: and with them, the
#: bits.
_BLOCKS = 264
_MOST_PARTS = 16
#: A counter for each group of rows and pass of a launch that has several parts.
COUNTERS = _BLOCKS // 2 * (MOST_TOKENS // TOKEN_TILE)


def can_multiply(name: str, rows: int, columns: int) -> bool:
    """Whether the kernels multiply a matrix of a format and size: of blocks, or BF16."""
    block = 8 if name == "BF16" else BLOCK_COLUMNS.get(name)
    return block is not None and rows > 0 and rows % TILE_ROWS == 0 and columns % block == 0


def tiles_of(columns: int) -> int:
    """Tiles of 256 columns, the last of which may have fewer."""
    return -(-columns // TILE_COLUMNS)


def groups_of(rows: int) -> int:
    return -(-rows // GROUP_ROWS)


def parts_of(groups: int, columns: int) -> int:
    """Into how many parts a launch cuts the columns of so many groups of rows."""
    return max(1, min(_BLOCKS // groups, tiles_of(columns), _MOST_PARTS))


def partial_floats(groups: int, columns: int, tokens: int, *, is_gated: bool) -> int:
    """Values of the partial sums of a launch; a gate's sums are kept beside those of `up`."""
    parts = parts_of(groups, columns)
    return parts * groups * tokens * GROUP_ROWS * (1 + is_gated) if parts > 1 or is_gated else 0


def square_floats(groups: int, columns: int, tokens: int) -> int:
    """Sums of squares of the norm of a launch."""
    parts = parts_of(groups, columns)
    return parts * groups * tokens if parts > 1 else 0


def panel_rows(rows: int, columns: int) -> int:
    """Rows that are decoded at once for products of many tokens."""
    return min(rows, max(PANEL_WEIGHTS // columns // GROUP_ROWS, 1) * GROUP_ROWS)


def fragment_workspace_bytes(tokens: int, columns: int, rows: int, value_bytes: int) -> int:
    """What a product x (tokens, columns) with a matrix allocates, beside its result."""
    if tokens > MOST_TOKENS:
        return value_bytes * panel_rows(rows, columns) * columns
    return 4 * partial_floats(groups_of(rows), columns, tokens, is_gated=False)
