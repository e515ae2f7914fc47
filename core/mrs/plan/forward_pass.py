"""One forward pass, and what its matrix products and norms take on a device.

Letters in the derivations here and of activations in general: T new tokens, S keys that they see,
h hidden size, H query heads and KV key heads of D numbers, G = H / KV, I the feed-forward's width;
a, c and w are the bytes of one number of activations (float32 on a CPU, the cache's type
elsewhere), of the KV cache, and of a dense weight.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from mrs.formats import Format
from mrs.plan.processor import Bf16Units
from mrs.plan.storage import Storage
from mrs.units import KIB, MIB

#: What torch's CPU kernels take besides: matrix products of half types, at most.
PRODUCT_SCRATCH_BYTES = 400 * KIB
#: Tokens from which packed weights are decoded for matrix units, and the size of the tiles.
MATRIX_UNIT_TOKENS = 32
TILE_BYTES = 4 * MIB
#: More tokens than this are multiplied as pairs of bf16.
PAIRED_TOKENS = 4

#: Where blocks are decoded for every product: weights in a tile, on a CPU and elsewhere.
BLOCK_TILE_WEIGHTS, BLOCK_TILE_WEIGHTS_ELSEWHERE = 1 << 20, 1 << 22
#: Weights that are decoded at once, by a thread of a CPU and elsewhere, and the bytes that each
#: takes meanwhile beside the result, at most.
DECODED_WEIGHTS, DECODED_WEIGHTS_ELSEWHERE = 1 << 18, 1 << 22
DECODING_BYTES = 17

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
        return max(result + _block_scratch_bytes(run, tokens, columns, rows), with_bias)
    if kept.format == run.activation:
        return with_bias
    cast = tokens * kept.format.block_bytes
    scratch = PRODUCT_SCRATCH_BYTES if run.threads else 0
    return max(cast * (columns + rows) + scratch, cast * rows + result, with_bias)


def _packed_scratch_bytes(run: Pass, weight: Format, tokens: int, columns: int, rows: int) -> int:
    """A packed product copies x to panels: quantized to one byte a number and 12 bytes for 32, or
    for a plain weight as bf16 or float32, whichever the processor multiplies.

    For matrix units it casts x of many tokens to bf16 instead, and decodes tile after tile of the
    weight to bf16, each of which is multiplied while the one before is still there.
    """
    if run.bf16 == "matrix" and tokens >= MATRIX_UNIT_TOKENS:
        tile_rows = min(rows, max(TILE_BYTES // (2 * columns), 1))
        tiles = 2 * tile_rows * 2 * columns
        return 2 * tokens * (columns + tile_rows) + tiles + PRODUCT_SCRATCH_BYTES
    if weight.is_quantized:
        return tokens * columns * 11 // 8
    halves = run.bf16 != "none" and weight.name == "BF16" and tokens > PAIRED_TOKENS
    return tokens * columns * (2 if halves else 4)


def _block_scratch_bytes(run: Pass, tokens: int, columns: int, rows: int) -> int:
    """A tile of the weight is decoded while the one before is still there, and multiplied; the
    product is copied to its place.

    A GPU that multiplies blocks as they are takes two copies of x instead, one of them in halves.
    """
    number = run.activation.block_bytes
    weights = BLOCK_TILE_WEIGHTS if run.threads else BLOCK_TILE_WEIGHTS_ELSEWHERE
    tile_rows = min(rows, max(weights // columns, 1))
    tile = tile_rows * columns
    tiles = max(number * tile + decoding_bytes(run, tile), number * (tile + tokens * tile_rows))
    return tiles if run.threads else max(tiles, (number + 2) * tokens * columns)


def decoding_bytes(run: Pass, weights: int) -> int:
    """Of decoding so many weights, result included."""
    at_once = run.threads * DECODED_WEIGHTS if run.threads else DECODED_WEIGHTS_ELSEWHERE
    return weights * run.activation.block_bytes + min(weights, at_once) * DECODING_BYTES


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
