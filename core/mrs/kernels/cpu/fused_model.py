"""A whole model in one call of the native library, for batches of a few tokens."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from mrs.kernels.cpu.fused_layer import NativeReadout
from mrs.kernels.cpu.fused_layer_chain import NativeLayerChain
from mrs.kernels.cpu.packed import PackedMatrix
from mrs.kernels.paged import AttentionBatch, PagedKV
from mrs.sizes.fused_workspace import FEW_TOKENS

#: The most ropes of a model, as in native/layer.h.
MAX_ROPES = 4


class _RopeStruct(ctypes.Structure):
    """The C struct of the same fields in native/layer.h."""

    _fields_ = (
        ("cos", ctypes.c_void_p),
        ("sin", ctypes.c_void_p),
        ("pairs", ctypes.c_int64),
        ("positions", ctypes.c_int64),
    )


class _ModelStruct(ctypes.Structure):
    """The C struct of the same fields in native/layer.h."""

    _fields_ = (
        ("embedding", ctypes.c_void_p),
        ("embedding_scale", ctypes.c_double),
        ("layers", ctypes.c_void_p),
        ("layer_count", ctypes.c_int64),
        ("rope_count", ctypes.c_int64),
        ("readout", ctypes.c_void_p),
    )


class NativeModel:
    """Embedding, layers, final norm and output head."""

    def __init__(
        self,
        embedding: PackedMatrix,
        embedding_scale: float,
        layers: NativeLayerChain,
        rope_pairs: Sequence[int],
        readout: NativeReadout,
    ) -> None:
        """`rope_pairs` are the pairs of each rope of the layers, at most `MAX_ROPES` of them."""
        self._functions = readout.functions
        self._layers = layers
        self._native = _ModelStruct(
            embedding.address,
            embedding_scale,
            layers.address,
            layers.count,
            len(rope_pairs),
            readout.address,
        )
        self._keep_alive = embedding, readout
        self._address = ctypes.addressof(self._native)
        self._rope_pairs = rope_pairs
        self._ropes_type = _RopeStruct * len(rope_pairs)
        self._state_floats = embedding.shape[1] + 2 * sum(rope_pairs)
        self._vocab_size = readout.vocab_size

    def supports(self, tokens: int) -> bool:
        """Whether a batch of so many tokens is small enough."""
        return 0 < tokens <= FEW_TOKENS

    def __call__(
        self,
        ids: Tensor,
        positions: Tensor,
        ropes: Sequence[tuple[Tensor, Tensor]],
        caches: Sequence[PagedKV],
        batches: Sequence[AttentionBatch],
    ) -> Tensor:
        """Logits (N, vocab) after each of the tokens `ids` (N) at `positions` (N).

        `ropes` are the tables of cos and sin (P, pairs), which have all these positions. Writes
        the keys and values of the tokens to the layers' `caches`. Raises BadIndex, for a token
        without an embedding too, and MemoryError.
        """
        count, vocab_size = ids.shape[0], self._vocab_size
        states = torch.empty(count * self._state_floats)
        # Until the logits are known, their memory is the workspace of the layers.
        rows = -(-count * max(self._layers.workspace_floats, vocab_size) // vocab_size)
        logits = torch.empty(rows, vocab_size)
        tables = zip(ropes, self._rope_pairs, strict=True)
        self._functions.mrs_model(
            self._address,
            self._layers.cache_addresses(caches),
            (ctypes.c_void_p * len(batches))(*[batch.address for batch in batches]),
            len(batches),
            self._ropes_type(
                *[
                    _RopeStruct(cos.data_ptr(), sin.data_ptr(), pairs, cos.shape[0])
                    for (cos, sin), pairs in tables
                ]
            ),
            ids.data_ptr(),
            positions.data_ptr(),
            count,
            states.data_ptr(),
            logits.data_ptr(),
            torch.get_num_threads(),
        )
        return logits if rows == count else logits[:count]
