"""One forward pass, and what its matrix products and norms take on a device.

Letters in the derivations here and of activations in general: T new tokens, S keys that they see,
h hidden size, H query heads and KV key heads of D numbers, G = H / KV, I the feed-forward's width;
a, c and w are the bytes of one number of activations (float32 on a CPU, the cache's type
elsewhere), of the KV cache, and of a dense weight.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from mrs.formats import FORMATS, Format
from mrs.sizes.products import (
    decoded_tile_rows,
    decoded_value_bytes,
    decoded_workspace_bytes,
    decodes,
    packed_workspace_bytes,
)
from mrs.sizes.quantization import block_workspace_bytes
from mrs.storage import Storage
from mrs.units import KIB

#: What torch's products take besides with AMX, at least.
AMX_SCRATCH_BYTES = 400 * KIB
#: Tokens and columns from which torch's products of bf16 take so much more in each thread.
COPIED_TOKENS, COPIED_COLUMNS, COPIED_BYTES = 769, 2049, 1536 * KIB
#: How the weight of a slot such as `mixer.q` is kept.
StorageOf = Callable[[str], Storage]


@dataclass(frozen=True)
class ForwardShape:
    """One forward pass on one device.

    `tokens` rows run at once, at most `sequence_tokens` of them of one sequence, which then has
    `context_tokens` in all. `threads` work on a CPU, 0 means an accelerator; `path` and
    `torch_units` are those of `mrs.devices.cpu_path`. Tokens attend to `image_keys` keys of
    images, each of which gives `new_image_keys` in this pass.
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

    def of_one_sequence(self) -> ForwardShape:
        """The same for one sequence: those of a batch attend one after another."""
        return replace(self, tokens=self.sequence_tokens)


def product_bytes(
    run: ForwardShape,
    columns: int,
    rows: int,
    kept: Storage,
    *,
    bias: bool = False,
    tokens: int = 0,
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


def _dense_scratch_bytes(
    run: ForwardShape, weight: Format, tokens: int, columns: int, rows: int
) -> int:
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


def _packed_scratch_bytes(
    run: ForwardShape, weight: Format, tokens: int, columns: int, rows: int
) -> int:
    """Where weights are decoded to bf16, for matrix units, torch takes some more for these."""
    if not decodes(run.path, tokens):
        return packed_workspace_bytes(run.path, run.threads, [(weight.name, rows)], tokens, columns)
    decoded = decoded_workspace_bytes(run.path, tokens, columns, rows)
    if decoded_value_bytes(run.path) == 4:
        return decoded
    tile_rows = min(rows, decoded_tile_rows(2, columns))
    return decoded + _dense_scratch_bytes(run, FORMATS["BF16"], tokens, columns, tile_rows)


def _block_scratch_bytes(
    run: ForwardShape, weight: Format, tokens: int, columns: int, rows: int
) -> int:
    """A GPU that multiplies blocks as they are takes two copies of x, one of them in halves."""
    number = run.activation.block_bytes
    tiles = block_workspace_bytes(weight.name, tokens, columns, rows, number, run.threads)
    return tiles if run.threads else max(tiles, (number + 2) * tokens * columns)


def head_product_bytes(run: ForwardShape, heads: int, columns: int, rows: int) -> int:
    """Each head's x times a matrix of its own, in the cache's type: (T, heads, rows) included.

    x is cast, and so is the product. Torch's units take x once more, and what they lay out.
    """
    product = run.tokens * heads * rows
    if run.cache == run.activation:
        return run.size(heads * rows)
    number = run.cache.block_bytes
    cast = number * run.tokens * heads * columns
    scratch = _dense_scratch_bytes(run, run.cache, run.tokens, columns, rows) * 3 // 2
    units = cast + scratch if scratch else 0
    return max(cast + number * product + units, number * product + run.size(heads * rows))


def norm_bytes(run: ForwardShape, size: int) -> int:
    """Beside its input: float32 of x where it has another type, two products, the result.

    The native kernels need nothing but the result.
    """
    numbers = run.tokens * size
    if run.native:
        return 4 * numbers
    if run.activation.name == "F32":
        return 2 * 4 * numbers
    return (3 * 4 + run.activation.block_bytes) * numbers
