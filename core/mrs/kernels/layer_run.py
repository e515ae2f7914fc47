"""Several layers of a decoder in one call of the native library, for steps of few tokens."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from mrs.kernels.layer import Angles, AttentionHalf, FeedForwardHalf, Half, require

#: More tokens than these take so long that a Ctrl-C should not wait for several layers.
FEW_TOKENS = 8


class _Layer(ctypes.Structure):
    """As native/layer.h describes it."""

    _fields_ = (
        ("attention", ctypes.c_void_p),
        ("feed_forward", ctypes.c_void_p),
        ("rope", ctypes.c_int64),
    )


class LayerRun:
    """Layers one after another, each an attention half and a feed-forward half."""

    def __init__(
        self, layers: Sequence[tuple[AttentionHalf, FeedForwardHalf]], ropes: Sequence[int]
    ) -> None:
        """`ropes` says for each layer which of the angles of a call are its own."""
        self._functions = layers[0][0].functions
        halves: list[Half] = [half for layer in layers for half in layer]
        self._layers = layers
        self._native = (_Layer * len(layers))(
            *(
                _Layer(attention.address, feed_forward.address, rope)
                for (attention, feed_forward), rope in zip(layers, ropes, strict=True)
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
        self, x: Tensor, angles: Sequence[tuple[Tensor, Tensor]], caches: Sequence[int]
    ) -> Tensor:
        """x (N, hidden) to (N, hidden); `angles` are cos and sin (N, pairs) of each rope.

        `caches` are addresses of the layers' `CachedTokens`, whose last N are written here.
        """
        x = x.contiguous()
        angles = [(cos.contiguous(), sin.contiguous()) for cos, sin in angles]
        scratch = torch.empty(x.shape[0] * self._scratch_numbers)
        out = torch.empty_like(x)
        require(
            self._functions.mrs_layers(
                self._address,
                len(self._layers),
                self._caches_type(*caches),
                self._angles_type(*(Angles(cos.data_ptr(), sin.data_ptr()) for cos, sin in angles)),
                x.data_ptr(),
                x.shape[0],
                scratch.data_ptr(),
                out.data_ptr(),
                torch.get_num_threads(),
            )
        )
        return out
