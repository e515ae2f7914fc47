"""One forward pass, and what its matrix products and norms take on a device.

Letters in the derivations here and of activations in general: T new tokens, S keys that they see,
h hidden size, H query heads and KV key heads of D numbers, G = H / KV, I the feed-forward's width;
a, c and w are the bytes of one number of activations (float32 on a CPU, the cache's type
elsewhere), of the KV cache, and of a dense weight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from mrs.formats import FORMATS, Format
from mrs.plan.storage import Storage
from mrs.units import KIB, MIB

#: What torch's products take besides with AMX, at least.
AMX_SCRATCH_BYTES = 400 * KIB
#: Tokens and columns from which torch's products of bf16 take so much more in each thread.
COPIED_TOKENS, COPIED_COLUMNS, COPIED_BYTES = 769, 2049, 1536 * KIB
#: Tokens from which packed weights are decoded for torch's products, by path; and the tiles.
DECODED_TOKENS = {"amx": 32, "portable": 4}
TILE_BYTES = 4 * MIB
#: More tokens than this are multiplied as pairs of bf16, by paths that have units for them.
PAIRED_TOKENS = 4
PAIRED_PATHS = ("amx", "avx512_bf16")
#: Tokens that a panel of activations may hold; how many do on some paths, and on others.
PANEL_WIDTHS = (1, 2, 4, 8, 12, 16)
WIDE_PANEL_PATHS, WIDE_PANEL, NARROW_PANEL = ("amx", "avx512_bf16", "avx512"), 16, 8
#: Some paths level weights for so many tokens and more. A thread then has a tile of so many bytes,
#: and sums of so many tiles of so many rows, in panels of which so many are in hand.
TILED_PATHS = WIDE_PANEL_PATHS
TILED_TOKENS, TILED_COLUMNS = 17, 128
TILE_CODE_BYTES, TILE_ROWS, TILES, TILE_PANELS = 16_896, 32, 8, 48


@dataclass(frozen=True)
class Layout:
    """How some packed weights read x: tokens in a panel, and a token's bytes for 32 columns."""

    name: str
    width: int
    unit_bytes: int


TILED = Layout("tiles", 12, 34)

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
    `context_tokens` in all. `threads` work on a CPU, 0 means an accelerator; `path` and
    `torch_units` are those of `mrs.cpu`. Tokens see `image_keys` keys of pictures, of which each
    gives `new_image_keys` in this pass.
    """

    tokens: int
    sequence_tokens: int
    context_tokens: int
    activation: Format
    cache: Format
    threads: int = 0
    path: str = "torch"
    torch_units: frozenset[str] = frozenset()
    image_keys: int = 0
    new_image_keys: int = 0

    @property
    def native(self) -> bool:
        """Whether our kernels compute."""
        return self.path != "torch"

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
    scratch = _dense_scratch_bytes(run, kept.format, tokens, columns, rows)
    return max(cast * (columns + rows) + scratch, cast * rows + result, with_bias)


def _dense_scratch_bytes(run: Pass, weight: Format, tokens: int, columns: int, rows: int) -> int:
    """Torch's units lay some weights out anew in each thread, and sum up some tokens, as measured.

    Without units a CPU sums products of bf16 up in float32, or like those of f16 in place.
    """
    some = min(tokens, 256)
    if not run.threads:
        return 0
    if weight.name == "F16" and "f16" in run.torch_units:
        laid = min(256 * columns, 256 * KIB)
        sums = some * (2 * min(columns, 2048) + 4 * min(rows, 1024) + 64)
        return run.threads * (2 * KIB + laid + sums)
    if weight.name == "BF16" and "bf16" in run.torch_units:
        copied = tokens >= COPIED_TOKENS and columns >= COPIED_COLUMNS
        laid = min(128 * columns, 128 * KIB) + (COPIED_BYTES if copied else 0)
        least = AMX_SCRATCH_BYTES if "amx" in run.torch_units else 0
        return max(run.threads * (KIB + laid + 256 * some), least)
    return 4 * tokens * rows + KIB if weight.name == "BF16" and "sums" in run.torch_units else 0


def _packed_scratch_bytes(run: Pass, weight: Format, tokens: int, columns: int, rows: int) -> int:
    """A packed product lays x out in panels. Where torch multiplies many tokens, tile after tile of
    the weight is decoded, and multiplied while the one before is still there: to bf16, which x is
    cast to, for matrix units, and to float32 in place of portable C.
    """
    if not decodes_packed(run, tokens):
        return panel_bytes(run, [weight], tokens, columns, rows)
    number = 2 if run.path == "amx" else 4
    tile_rows = min(rows, max(TILE_BYTES // (number * columns), 1))
    tiles = (2 if tile_rows < rows else 1) * tile_rows * number * columns
    results = number * tokens * tile_rows
    if run.path != "amx":
        return results + tiles
    units = _dense_scratch_bytes(run, FORMATS["BF16"], tokens, columns, tile_rows)
    return number * tokens * columns + results + tiles + units


def decodes_packed(run: Pass, tokens: int) -> bool:
    """Whether packed weights are decoded for so many tokens."""
    return tokens >= DECODED_TOKENS.get(run.path, tokens + 1)


def panel_bytes(run: Pass, weights: Iterable[Format], tokens: int, columns: int, rows: int) -> int:
    """x as packed weights of `rows` rows in all read it, and what their products take besides.

    Weights of one layout share it. A panel holds several tokens and is filled up.
    """
    layouts = {_layout(run, weight, tokens, columns) for weight in weights}
    panels = {layout.name: -(-tokens // layout.width) for layout in layouts}
    laid = sum(
        panels[layout.name] * layout.width * -(-columns // 32) * layout.unit_bytes
        for layout in layouts
    )
    if TILED not in layouts:
        return laid
    tasks = -(-rows // TILE_ROWS)
    tiles = min(tasks if run.threads == 1 else max(tasks // (2 * run.threads), 1), TILES)
    sums = tiles * min(panels[TILED.name], TILE_PANELS) * TILE_ROWS * TILED.width * 4
    return laid + min(run.threads, tasks) * (TILE_CODE_BYTES + sums)


def panel_width(path: str, tokens: int) -> int:
    """Tokens of a panel: the fewest panels that can hold all, each no wider than they need."""
    panels = -(-tokens // (WIDE_PANEL if path in WIDE_PANEL_PATHS else NARROW_PANEL))
    return next(width for width in PANEL_WIDTHS if width * panels >= tokens)


def _layout(run: Pass, weight: Format, tokens: int, columns: int) -> Layout:
    """How a packed weight reads x: for quantized weights numbers take a byte, and 12 or 2 more;
    for plain ones they are bf16 or float32, whichever the path multiplies.
    """
    width = panel_width(run.path, tokens)
    if not weight.is_quantized:
        paired = run.path in PAIRED_PATHS and weight.name == "BF16" and tokens > PAIRED_TOKENS
        return Layout("bf16", width, 64) if paired else Layout("float32", width, 128)
    tiled = run.path in TILED_PATHS and tokens >= TILED_TOKENS and columns % TILED_COLUMNS == 0
    return TILED if tiled and weight.name != "Q8_0" else Layout(weight.name, width, 44)


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
