"""llama.cpp's quantizer, from the shared library that llama-cpp-python brings."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import numpy as np

from mrs.formats import FORMATS

Quantize = Callable[..., np.ndarray]


def open_quantizer() -> Quantize:
    """A function from float32 (rows, columns) and a format's name to blocks (rows, row_bytes).

    A third argument is the importance of columns, float32 (columns,). Raises ImportError without
    llama-cpp-python.
    """
    import llama_cpp

    library = ctypes.CDLL(str(Path(llama_cpp.__file__).parent / "lib" / "libggml-base.so"))
    chunk = library.ggml_quantize_chunk
    chunk.restype = ctypes.c_size_t
    chunk.argtypes = [ctypes.c_int, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 3, ctypes.c_void_p]

    def quantize(
        weights: np.ndarray, name: str, importance: np.ndarray | None = None
    ) -> np.ndarray:
        kind, (rows, columns) = FORMATS[name], weights.shape
        weights = np.ascontiguousarray(weights, np.float32)
        blocks = np.zeros((rows, kind.size_bytes((columns,))), np.uint8)
        source, target = weights.ctypes.data, blocks.ctypes.data
        weigh = None if importance is None else importance.ctypes.data
        assert chunk(kind.ggml_type, source, target, 0, rows, columns, weigh) == blocks.size
        return blocks

    return quantize
