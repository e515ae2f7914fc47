"""The shape of a forward pass, and the memory of its matrix products and norms on a device.

Letters in all formulas of activations:

    T        new tokens
    S        keys that they attend to
    h        hidden size
    H, KV    query heads and key heads; G = H / KV
    D        head size
    I        intermediate size of the MLP
    a, c, w  bytes of one value of the activations (float32 on a CPU, the cache's type elsewhere),
             of the KV cache and of a dense weight
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from mrs.formats import Format, KVFormat
from mrs.kernels.workspace.fragments import fragment_workspace_bytes
from mrs.kernels.workspace.products import packed_workspace_bytes
from mrs.quantization.storage import Storage
from mrs.quantization.workspace import block_workspace_bytes
from mrs.units import KIB

#: From this many tokens and columns on, torch's bf16 products allocate COPIED_BYTES per thread.
COPIED_TOKENS, COPIED_COLUMNS, COPIED_BYTES = 769, 2049, 1536 * KIB
#: The storage of the weight in a slot such as `mixer.q`.
StorageOf = Callable[[str], Storage]


@dataclass(frozen=True)
class ForwardShape:
    """The shape of one forward pass on one device.

    `tokens` new tokens, at most `sequence_tokens` of them of one sequence, which then has
    `context_tokens` in all. `threads` is the number of CPU threads, 0 on an accelerator. `path` and
    `torch_units` are those of `mrs.devices.cpu_path`. Cross-attention attends to `image_keys` keys
    of all images; each image of this pass adds `new_image_keys`. No blocks are fused in passes of
    sequences with adapters, the largest of which has `adapter_rank`. The cache of tokens may be
    `quantized`; then `cache` is the type in which torch attends.
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
    adapter_rank: int = 0
    quantized: KVFormat | None = None

    @property
    def native(self) -> bool:
        """Whether the native kernels compute."""
        return self.path != "torch"

    @property
    def key_bytes(self) -> int:
        """Bytes of a key's value where torch attends: it computes with no type below 16 bits."""
        return max(self.cache.block_bytes, 2)

    def size(self, values: int) -> int:
        """Bytes of an activation of shape (T, values)."""
        return self.tokens * values * self.activation.block_bytes

    def of_one_sequence(self) -> ForwardShape:
        """The shape of one sequence; the sequences of a batch attend one after another."""
        return replace(self, tokens=self.sequence_tokens)


def product_bytes(
    shape: ForwardShape,
    columns: int,
    rows: int,
    storage: Storage,
    *,
    bias: bool = False,
    tokens: int = 0,
) -> int:
    """Peak bytes of x (T, columns) @ W.T with its result (T, rows), without x.

    If the columns of a matrix in blocks are permuted, x is copied. If a dense weight has another
    type than x, x is cast, multiplied, and the result cast back:
    max(w T columns + w T rows, (w + a) T rows). Adding a bias allocates a second result. An adapter
    is multiplied in float32 and added to the result, at most for all tokens.
    """
    tokens = tokens or shape.tokens
    if shape.adapter_rank:
        without = replace(shape, adapter_rank=0)
        plain = product_bytes(without, columns, rows, storage, bias=bias, tokens=tokens)
        value_bytes = shape.activation.block_bytes
        added = (value_bytes + 4) * (columns + rows) + 4 * shape.adapter_rank + 8
        return max(plain, tokens * (value_bytes * rows + added))
    if storage.is_permuted and storage.form != "packed":
        inner = product_bytes(
            shape, columns, rows, replace(storage, order_bytes=0), tokens=tokens, bias=bias
        )
        return inner + tokens * columns * shape.activation.block_bytes
    result = tokens * rows * shape.activation.block_bytes
    with_bias = 2 * result if bias else result
    if storage.form == "packed":
        names = [storage.format.name]
        once, twice = ([], names) if storage.residuals else (names, [])
        scratch = packed_workspace_bytes(shape.path, once, tokens, columns, twice)
        return max(result + scratch, with_bias)
    if storage.form == "blocks":
        scratch = _block_scratch_bytes(shape, storage.format, tokens, columns, rows)
        return max(result + scratch, with_bias)
    if storage.format == shape.activation:
        return with_bias
    cast = tokens * storage.format.block_bytes
    scratch = _dense_scratch_bytes(shape, storage.format, tokens, columns, rows)
    return max(cast * (columns + rows) + scratch, cast * rows + result, with_bias)


def _dense_scratch_bytes(
    shape: ForwardShape, weight: Format, tokens: int, columns: int, rows: int
) -> int:
    """Workspace of torch's dense products on a CPU, as measured.

    With matrix units each thread copies some weights into another layout and sums some tokens.
    Without units, products of bf16 are summed in float32 or, like those of f16, in place.
    """
    summed_tokens = min(tokens, 256)
    if not shape.threads:
        return 0
    if weight.name == "F16" and "f16" in shape.torch_units:
        copied_weights = min(256 * columns, 256 * KIB)
        sums = summed_tokens * (2 * min(columns, 2048) + 4 * min(rows, 1024) + 64)
        return shape.threads * (2 * KIB + copied_weights + sums)
    if weight.name == "BF16" and "bf16" in shape.torch_units:
        copied = tokens >= COPIED_TOKENS and columns >= COPIED_COLUMNS
        copied_weights = min(128 * columns, 128 * KIB) + (COPIED_BYTES if copied else 0)
        scratch = shape.threads * (KIB + copied_weights + 256 * summed_tokens)
        if "amx" not in shape.torch_units:
            return scratch
        return max(scratch, shape.threads * _amx_bytes(tokens, columns, rows))
    return 4 * tokens * rows + KIB if weight.name == "BF16" and "sums" in shape.torch_units else 0


def _amx_bytes(tokens: int, columns: int, rows: int) -> int:
    """A thread's copies for products of bf16 with AMX: a bound of what oneDNN 3.12 takes.

    It copies 128 rows of weights, however long they are, and sums tokens whose columns it divides.
    """
    sums = min(tokens, 1024) * min(6 * rows, 4 * KIB) if columns > KIB else 0
    return 5 * KIB + 128 * columns + sums


def _block_scratch_bytes(
    shape: ForwardShape, weight: Format, tokens: int, columns: int, rows: int
) -> int:
    """Workspace of a product with blocks.

    A GPU that multiplies blocks directly needs two copies of x, one of them in float16, or what
    products with fragments need. Which of these it is, its kernels decide when they are loaded.
    """
    value_bytes = shape.activation.block_bytes
    tiles = block_workspace_bytes(weight.name, tokens, columns, rows, value_bytes, shape.threads)
    if shape.threads:
        return tiles
    fragments = fragment_workspace_bytes(tokens, columns, rows, value_bytes)
    return max(tiles, (value_bytes + 2) * tokens * columns, fragments)


def head_product_bytes(shape: ForwardShape, heads: int, columns: int, rows: int) -> int:
    """Peak bytes of each head's x (T, columns) times its own matrix, in the cache's type.

    Includes the result (T, heads, rows). Torch casts x and the product. With its matrix units
    there is one more copy of x and their workspace.
    """
    product = shape.tokens * heads * rows
    if shape.native or shape.cache == shape.activation:
        return shape.size(heads * rows)
    value_bytes = shape.cache.block_bytes
    cast = value_bytes * shape.tokens * heads * columns
    scratch = _dense_scratch_bytes(shape, shape.cache, shape.tokens, columns, rows) * 3 // 2
    units = cast + scratch if scratch else 0
    return max(
        cast + value_bytes * product + units, value_bytes * product + shape.size(heads * rows)
    )


def norm_bytes(shape: ForwardShape, size: int) -> int:
    """Peak bytes of a norm of x (T, size), without x.

    native         the result
    torch, float32 two products
    torch, other   x and two products in float32, and the result
    """
    values = shape.tokens * size
    if shape.native:
        return 4 * values
    if shape.activation.name == "F32":
        return 2 * 4 * values
    return (3 * 4 + shape.activation.block_bytes) * values
