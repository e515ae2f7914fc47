"""Several decoder layers in one call of the native library, for batches of a few tokens."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from mrs.kernels.cpu.fused_layer import (
    Angles,
    NativeAttentionBlock,
    NativeBlock,
    NativeMlpBlock,
)
from mrs.kernels.paged import AttentionBatch, PagedKV
from mrs.sizes.fused_workspace import FEW_TOKENS


class _LayerStruct(ctypes.Structure):
    """The C struct of the same fields in native/layer.h."""

    _fields_ = (
        ("attention", ctypes.c_void_p),
        ("feed_forward", ctypes.c_void_p),
        ("rope", ctypes.c_int64),
        ("group", ctypes.c_int64),
    )


class NativeLayerChain:
    """Adjacent layers, each an attention block and an MLP block."""

    def __init__(
        self,
        layers: Sequence[tuple[NativeAttentionBlock, NativeMlpBlock]],
        ropes: Sequence[int],
        groups: Sequence[int],
    ) -> None:
        """`ropes` and `groups` index, for each layer, the angles and the batches of a call."""
        self._functions = layers[0][0].functions
        blocks: list[NativeBlock] = [block for layer in layers for block in layer]
        self._layers = layers
        self._native = (_LayerStruct * len(layers))(
            *(
                _LayerStruct(attention.address, mlp.address, rope, group)
                for (attention, mlp), rope, group in zip(layers, ropes, groups, strict=True)
            )
        )
        self.address = ctypes.addressof(self._native)
        self.count = len(layers)
        self._caches_type = ctypes.c_void_p * len(layers)
        self._angles_type = Angles * (max(ropes) + 1)
        #: float32 values of workspace that a token needs.
        self.workspace_floats = max(block.workspace_floats for block in blocks)

    def supports(self, x: Tensor) -> bool:
        """Whether the library multiplies x (N, hidden), and it has at most a few tokens."""
        return x.dtype is torch.float32 and x.shape[0] <= FEW_TOKENS

    def cache_addresses(self, caches: Sequence[PagedKV]) -> ctypes.Array[ctypes.c_void_p]:
        """The C array of the layers' caches."""
        return self._caches_type(*[cache.address for cache in caches])

    def __call__(
        self,
        x: Tensor,
        angles: Sequence[tuple[Tensor, Tensor]],
        caches: Sequence[PagedKV],
        batches: Sequence[AttentionBatch],
    ) -> Tensor:
        """x (N, hidden) to (N, hidden); `angles` are cos and sin (N, pairs) of each rope.

        Writes the keys and values of the batch's tokens to the layers' `caches`. Raises BadIndex.
        """
        x = x.contiguous()
        angles = [(cos.contiguous(), sin.contiguous()) for cos, sin in angles]
        workspace = torch.empty(x.shape[0] * self.workspace_floats)
        out = torch.empty_like(x)
        self._functions.mrs_layers(
            self.address,
            self.count,
            self.cache_addresses(caches),
            (ctypes.c_void_p * len(batches))(*[batch.address for batch in batches]),
            len(batches),
            self._angles_type(
                *[Angles(cos.data_ptr(), sin.data_ptr(), cos.shape[0]) for cos, sin in angles]
            ),
            len(angles),
            x.data_ptr(),
            x.shape[0],
            workspace.data_ptr(),
            out.data_ptr(),
            torch.get_num_threads(),
        )
        return out
