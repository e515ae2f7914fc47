"""One forward pass, and what its matrix products and norms take on a device.

Letters in the derivations here and of activations in general: T new tokens, S keys that they see,
h hidden size, H query heads and KV key heads of D numbers, G = H / KV, I the feed-forward's width;
a, c and w are the bytes of one number of activations (float32 on a CPU, the cache's type
elsewhere), of the KV cache, and of a dense weight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from mrs.formats import Format
from mrs.plan.processor import Bf16Units
from mrs.plan.storage import Storage
from mrs.units import KIB, MIB

#: What torch's CPU kernels take besides for products of half types, at most, on processors that
#: multiply them.
PRODUCT_SCRATCH_BYTES = 400 * KIB
#: Tokens from which packed weights are decoded for matrix units, and the size of the tiles.
MATRIX_UNIT_TOKENS = 32
TILE_BYTES = 4 * MIB
#: More tokens than this are multiplied as pairs of bf16.
PAIRED_TOKENS = 4
#: Tokens in a panel of activations, for up to so many tokens in all.
PANEL_WIDTHS = ((1, 1), (2, 2), (4, 4), (16, 8), (float("inf"), 12))
#: Where weights are levelled for the tokens of the last of these, a thread has a tile of so many
#: bytes, and sums of so many tiles of so many rows, in panels of which so many are in hand.
TILE_CODE_BYTES, TILE_ROWS, TILES, TILE_PANELS = 16_896, 32, 8, 48
TILED_COLUMNS = 128
#: The layout of what such weights read, and its bytes for 32 columns of a token.
TILED = "tiles", 34

#: Where blocks are decoded for every product: weights in a tile, on a CPU and elsewhere.
BLOCK_TILE_WEIGHTS, BLOCK_TILE_WEIGHTS_ELSEWHERE = 1 << 20, 1 << 22
#: Weights that are decoded at once, by a thread of a CPU and elsewhere.
DECODED_WEIGHTS, DECODED_WEIGHTS_ELSEWHERE = 1 << 18, 1 << 22
#: Bytes that each of them takes meanwhile beside the result, as measured; others take the most.
DECODING_BYTES = {
    **dict.fromkeys(("Q4_0", "Q5_0", "Q8_0", "Q8_K", "TQ2_0"), 8.2),
    "TQ1_0": 10.1,
    **dict.fromkeys(("Q4_1", "Q5_1"), 12.2),
    **dict.fromkeys(("IQ2_S", "IQ3_S"), 12.7),
    **dict.fromkeys(("Q2_K", "Q4_K", "Q5_K", "IQ4_NL", "IQ4_XS", "MXFP4"), 13.2),
    **dict.fromkeys(("Q3_K", "Q6_K"), 14.3),
}
MOST_DECODING_BYTES = 17.1

#: How the weight of a slot such as `mixer.q` is kept.
KeptAs = Callable[[str], Storage]


@dataclass(frozen=True)
class Pass:
    """One forward pass on one device.

    `tokens` rows run at once, at most `sequence_tokens` of them of one sequence, which then has
    `context_tokens` in all. `threads` work on a CPU that has the `bf16` units and, with
    `native`, our kernels; 0 means an accelerator. Tokens see `image_keys` keys of pictures, of
    which each gives `new_image_keys` in this pass.
    """

    tokens: int
    sequence_tokens: int
    context_tokens: int
    activation: Format
    cache: Format
    threads: int = 0
    bf16: Bf16Units = "none"
    native: bool = False
    image_keys: int = 0
    new_image_keys: int = 0

    def size(self, numbers: int) -> int:
        """Bytes of the activations of all rows, of so many numbers each."""
        return self.tokens * numbers * self.activation.block_bytes

    def of_one_sequence(self) -> Pass:
        """The same for one sequence: those of a batch attend one after another."""
        return replace(self, tokens=self.sequence_tokens)


def product_bytes(
    run: Pass, columns: int, rows: int, kept: Storage, *, bias: bool = False, tokens: int = 0
) -> int:
    """Beside its input: x (T, columns) @ W.T, result (T, rows) included.

    A dense weight of another type than the activations casts x, multiplies, and casts the result
    back: max(w T columns + w T rows, (w + a) T rows). A bias is added into a new result.
    """
    tokens = tokens or run.tokens
    result = tokens * rows * run.activation.block_bytes
    with_bias = 2 * result if bias else result
    if kept.form == "packed":
        scratch = _packed_scratch_bytes(run, kept.format, tokens, columns, rows)
        return max(result + scratch, with_bias)
    if kept.form == "blocks":
        scratch = _block_scratch_bytes(run, kept.format, tokens, columns, rows)
        return max(result + scratch, with_bias)
    if kept.format == run.activation:
        return with_bias
    cast = tokens * kept.format.block_bytes
    scratch = _dense_scratch_bytes(run, kept.format, tokens, rows)
    return max(cast * (columns + rows) + scratch, cast * rows + result, with_bias)


def _dense_scratch_bytes(run: Pass, weight: Format, tokens: int, rows: int) -> int:
    """Without bf16 units a CPU sums products of bf16 up in float32, and those of f16 in place."""
    if not run.threads:
        return 0
    if run.bf16 != "none":
        return PRODUCT_SCRATCH_BYTES
    return 4 * tokens * rows + KIB if weight.name == "BF16" and tokens > 1 else 0


def _packed_scratch_bytes(run: Pass, weight: Format, tokens: int, columns: int, rows: int) -> int:
    """A packed product lays x out in panels. For matrix units it casts x of many tokens to bf16
    instead, and decodes tile after tile of the weight to bf16, each of which is multiplied while
    the one before is still there.
    """
    if not decodes_packed(run, tokens):
        return panel_bytes(run, [weight], tokens, columns, rows)
    tile_rows = min(rows, max(TILE_BYTES // (2 * columns), 1))
    tiles = 2 * tile_rows * 2 * columns
    return 2 * tokens * (columns + tile_rows) + tiles + PRODUCT_SCRATCH_BYTES


def decodes_packed(run: Pass, tokens: int) -> bool:
    """Whether packed weights are decoded for so many tokens."""
    return run.bf16 == "matrix" and tokens >= MATRIX_UNIT_TOKENS


def panel_bytes(run: Pass, weights: Iterable[Format], tokens: int, columns: int, rows: int) -> int:
    """x as packed weights of `rows` rows in all read it, and what their products take besides.

    Weights of one layout share it. A panel holds several tokens and is filled up.
    """
    width = next(width for most, width in PANEL_WIDTHS if tokens <= most)
    padded = -(-tokens // width) * width
    units = padded * -(-columns // 32)
    layouts = {_layout(run, weight, tokens, columns) for weight in weights}
    laid = sum(units * unit_bytes for _, unit_bytes in layouts)
    if TILED not in layouts:
        return laid
    # Processors with fewer registers have narrower panels with more scales, and no tiles.
    panels = min(padded // width, TILE_PANELS)
    tasks = -(-rows // TILE_ROWS)
    tiles = min(tasks if run.threads == 1 else max(tasks // (2 * run.threads), 1), TILES)
    tiling = TILE_CODE_BYTES + tiles * panels * TILE_ROWS * width * 4
    return laid + max(min(run.threads, tasks) * tiling, units * 10)


def _layout(run: Pass, weight: Format, tokens: int, columns: int) -> tuple[str, int]:
    """What tells a layout from others, and its bytes for 32 columns of a token.

    For quantized weights numbers take a byte, and 12 or 2 more; for plain ones they are bf16 or
    float32, whichever the processor multiplies.
    """
    if not weight.is_quantized:
        halves = run.bf16 != "none" and weight.name == "BF16" and tokens > PAIRED_TOKENS
        return ("bf16", 64) if halves else ("float32", 128)
    many = tokens > PANEL_WIDTHS[-2][0]
    if many and weight.name != "Q8_0" and columns % TILED_COLUMNS == 0:
        return TILED
    return weight.name, 44


def _block_scratch_bytes(run: Pass, weight: Format, tokens: int, columns: int, rows: int) -> int:
    """A tile of the weight is decoded, while the one before is still there, and multiplied; the
    product is copied to its place.

    A GPU that multiplies blocks as they are takes two copies of x instead, one of them in halves.
    """
    number = run.activation.block_bytes
    weights = BLOCK_TILE_WEIGHTS if run.threads else BLOCK_TILE_WEIGHTS_ELSEWHERE
    tile_rows = min(rows, max(weights // columns, 1))
    tile = tile_rows * columns
    before = number * tile if tile_rows < rows else 0
    decoding = before + decoding_bytes(run, weight, tile)
    tiles = max(decoding, number * (tile + tokens * tile_rows))
    return tiles if run.threads else max(tiles, (number + 2) * tokens * columns)


def decoding_bytes(run: Pass, weight: Format, weights: int) -> int:
    """Of decoding so many numbers of a format, result included."""
    at_once = run.threads * DECODED_WEIGHTS if run.threads else DECODED_WEIGHTS_ELSEWHERE
    each = DECODING_BYTES.get(weight.name, MOST_DECODING_BYTES)
    return weights * run.activation.block_bytes + int(min(weights, at_once) * each)


def norm_bytes(run: Pass, size: int) -> int:
    """Beside its input: float32 of x where it has another type, two products, the result.

    The native kernels need nothing but the result.
    """
    numbers = run.tokens * size
    if run.native:
        return 4 * numbers
    if run.activation.name == "F32":
        return 2 * 4 * numbers
    return (3 * 4 + run.activation.block_bytes) * numbers
