"""Workspace for decoding and encoding weights, and of products with matrices in blocks."""

from __future__ import annotations

#: Weights that are decoded or encoded at once, by one CPU thread and on other devices. These
#: outweigh the overhead of an operation, and the temporaries (up to about forty bytes per weight)
#: stay small compared with the model.
CODED_WEIGHTS, CODED_WEIGHTS_ELSEWHERE = 1 << 18, 1 << 22
#: Weights in a chunk of a tensor with a separate scale tensor: decoding it needs more memory.
SCALED_CHUNK_WEIGHTS = 1 << 19
#: Bytes of adjacent columns that are read at once from a tensor that is transposed in its file.
STRIP_BYTES = 1 << 23
#: Weights that a matrix in blocks decodes at once for a product, on a CPU and elsewhere. A few
#: dozen bytes per weight are little for a GPU, and fit partly into a CPU's caches.
TILE_WEIGHTS, TILE_WEIGHTS_ELSEWHERE = 1 << 20, 1 << 22
#: Temporary bytes per weight while it is decoded, without the result, as measured. Formats that
#: are not listed need MOST_DECODING_BYTES.
DECODING_BYTES = {
    **{f"FP8_{group}": 5.1 for group in (32, 64, 128)},
    **{f"INT{bits}_{group}": 5.7 for bits in (2, 3, 4) for group in (32, 64, 128)},
    **{f"INT8_{group}": 5.2 for group in (32, 64, 128)},
    **dict.fromkeys(("Q4_0", "Q5_0", "Q8_0", "Q8_K", "TQ2_0"), 8.2),
    "TQ1_0": 10.1,
    **dict.fromkeys(("Q4_1", "Q5_1"), 12.2),
    **dict.fromkeys(("IQ2_S", "IQ3_S"), 12.7),
    **dict.fromkeys(("Q2_K", "Q4_K", "Q5_K", "IQ4_NL", "IQ4_XS", "MXFP4"), 13.2),
    **dict.fromkeys(("Q3_K", "Q6_K"), 14.3),
}
MOST_DECODING_BYTES = 17.1


def coded_weights(*, on_cpu: bool) -> int:
    """Weights that one thread decodes or encodes at once."""
    return CODED_WEIGHTS if on_cpu else CODED_WEIGHTS_ELSEWHERE


def load_chunk_weights(threads: int) -> int:
    """Weights that are read from a file at once: enough work for every thread of a CPU."""
    return max(threads, 8) * CODED_WEIGHTS


def tile_rows(columns: int, *, on_cpu: bool) -> int:
    """Rows of a matrix in blocks that are decoded at once for a product."""
    return max((TILE_WEIGHTS if on_cpu else TILE_WEIGHTS_ELSEWHERE) // columns, 1)


def decoding_bytes(name: str, weights: int, value_bytes: int, threads: int) -> int:
    """Peak bytes of decoding `weights` of format `name`, result included. 0 threads: no CPU."""
    at_once = max(threads, 1) * coded_weights(on_cpu=threads > 0)
    each = DECODING_BYTES.get(name, MOST_DECODING_BYTES)
    return weights * value_bytes + int(min(weights, at_once) * each)


def block_workspace_bytes(
    name: str, tokens: int, columns: int, rows: int, value_bytes: int, threads: int
) -> int:
    """Workspace of a product with a matrix in blocks, one tile of rows after another.

    The larger of: decoding a tile while the previous tile is still allocated; the tile and its
    product, which is then copied into the result.
    """
    rows_at_once = min(rows, tile_rows(columns, on_cpu=threads > 0))
    previous = value_bytes * rows_at_once * columns if rows_at_once < rows else 0
    decoding = previous + decoding_bytes(name, rows_at_once * columns, value_bytes, threads)
    return max(decoding, value_bytes * rows_at_once * (columns + tokens))
