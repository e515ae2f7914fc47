"""Several layers of a decoder in one call of the native library, for steps of few tokens."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from mrs.kernels.layer import Angles, AttentionHalf, FeedForwardHalf, Half, require
from mrs.kernels.paged import AttentionBatch, PagedKV

#: More tokens than these take so long that a Ctrl-C should not wait for several layers.
FEW_TOKENS = 16


class _Layer(ctypes.Structure):
    """As native/layer.h describes it."""

    _fields_ = (
        ("attention", ctypes.c_void_p),
        ("feed_forward", ctypes.c_void_p),
        ("rope", ctypes.c_int64),
        ("group", ctypes.c_int64),
    )


class LayerRun:
    """Layers one after another, each an attention half and a feed-forward half."""

    def __init__(
        self,
        layers: Sequence[tuple[AttentionHalf, FeedForwardHalf]],
        ropes: Sequence[int],
        groups: Sequence[int],
    ) -> None:
        """For each layer `ropes` says which of the angles of a call are its own, `groups` which
        of the batches.
        """
        self._functions = layers[0][0].functions
        halves: list[Half] = [half for layer in layers for half in layer]
        self._layers = layers
        self._native = (_Layer * len(layers))(
            *(
                _Layer(attention.address, feed_forward.address, rope, group)
                for (attention, feed_forward), rope, group in zip(
                    layers, ropes, groups, strict=True
                )
            )
        )
        self._address = ctypes.addressof(self._native)
        self._caches_type = ctypes.c_void_p * len(layers)
        self._angles_type = Angles * (max(ropes) + 1)
        self._scratch_numbers = max(half.scratch_numbers for half in halves)
        self._most_tokens = min(FEW_TOKENS, *(half.dense_tokens - 1 for half in halves))

    def takes(self, x: Tensor) -> bool:
        """Whether x (N, hidden) is a few rows that the library multiplies."""
        return x.dtype is torch.float32 and x.shape[0] <= self._most_tokens

    def __call__(
        self,
        x: Tensor,
        angles: Sequence[tuple[Tensor, Tensor]],
        caches: Sequence[PagedKV],
        batches: Sequence[AttentionBatch],
    ) -> Tensor:
        """x (N, hidden) to (N, hidden); `angles` are cos and sin (N, pairs) of each rope.

        The keys and values of the batch's tokens are written to the layers' `caches`.
        """
        x = x.contiguous()
        angles = [(cos.contiguous(), sin.contiguous()) for cos, sin in angles]
        scratch = torch.empty(x.shape[0] * self._scratch_numbers)
        out = torch.empty_like(x)
        require(
            self._functions.mrs_layers(
                self._address,
                len(self._layers),
                self._caches_type(*(cache.address for cache in caches)),
                (ctypes.c_void_p * len(batches))(*(batch.address for batch in batches)),
                self._angles_type(*(Angles(cos.data_ptr(), sin.data_ptr()) for cos, sin in angles)),
                x.data_ptr(),
                scratch.data_ptr(),
                out.data_ptr(),
                torch.get_num_threads(),
            )
        )
        return out
