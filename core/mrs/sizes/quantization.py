"""What decoding and encoding weights takes, and products with weights in blocks."""

from __future__ import annotations

#: Weights that are decoded or encoded at once, by a thread of a CPU and elsewhere: enough to
#: outweigh the overhead of an operation on every device, while temporaries, up to about forty
#: bytes for each, stay small beside the weights.
CODED_WEIGHTS, CODED_WEIGHTS_ELSEWHERE = 1 << 18, 1 << 22
#: Weights in a chunk of a tensor with scales of its own: decoding these takes more.
SCALED_CHUNK_WEIGHTS = 1 << 19
#: Weights that a matrix in blocks decodes at a time for a product: a few dozen bytes for each are
#: no burden to a GPU, and a CPU's caches hold a part of them.
TILE_WEIGHTS, TILE_WEIGHTS_ELSEWHERE = 1 << 20, 1 << 22
#: Bytes that each weight takes while it is decoded beside the result, as measured; those of other
#: formats take the most.
DECODING_BYTES = {
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
    """Weights that are read from a file at a time: enough work for every thread of a CPU."""
    return max(threads, 8) * CODED_WEIGHTS


def tile_rows(columns: int, *, on_cpu: bool) -> int:
    """Rows of a matrix in blocks that are decoded together for a product."""
    return max((TILE_WEIGHTS if on_cpu else TILE_WEIGHTS_ELSEWHERE) // columns, 1)


def decoding_bytes(name: str, weights: int, number_bytes: int, threads: int) -> int:
    """Of decoding so many weights of a format to numbers, result included; 0 threads: no CPU."""
    at_once = max(threads, 1) * coded_weights(on_cpu=threads > 0)
    each = DECODING_BYTES.get(name, MOST_DECODING_BYTES)
    return weights * number_bytes + int(min(weights, at_once) * each)


def block_workspace_bytes(
    name: str, tokens: int, columns: int, rows: int, number_bytes: int, threads: int
) -> int:
    """A tile is decoded while the one before is still there, and multiplied; the product is copied
    to its place.
    """
    some = min(rows, tile_rows(columns, on_cpu=threads > 0))
    before = number_bytes * some * columns if some < rows else 0
    decoding = before + decoding_bytes(name, some * columns, number_bytes, threads)
    return max(decoding, number_bytes * some * (columns + tokens))
