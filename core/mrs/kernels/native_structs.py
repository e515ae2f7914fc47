"""C structs through which a paged KV cache and a batch are passed to the native library."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from mrs.kernels import c_structs
from mrs.kernels.kv_codes import RowCodes

#: The library's codes for the types of a cache, and for formats with codes.
CACHE_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
CODE_TYPES = {"Q8_0": 3, "Q4_0": 4}


class NativeTensor(c_structs.CacheTensor):
    """Keys or values of one layer."""

    @classmethod
    def of(cls, x: Tensor) -> NativeTensor:
        """x (blocks, KV, block tokens, D), contiguous in the last dimension."""
        strides = x.stride(0), x.stride(1), x.stride(2)
        return cls(x.data_ptr(), CACHE_TYPES[x.dtype], x.shape[3], *strides)

    @classmethod
    def of_codes(cls, x: Tensor, codes: RowCodes) -> NativeTensor:
        """x (blocks, KV, block tokens, row bytes), contiguous in the last two dimensions."""
        strides = x.stride(0), x.stride(1), 0
        return cls(x.data_ptr(), CODE_TYPES[codes.format], codes.dim, *strides)


class NativeKV(c_structs.KVCache):
    """The cache of one layer.

    It has only addresses: the caller keeps the tensors alive.
    """

    @classmethod
    def of(cls, keys: Tensor, values: Tensor, block_shift: int) -> NativeKV:
        """`keys` and `values` (blocks, KV, 1 << block_shift, D) of one type."""
        tensors = NativeTensor.of(keys), NativeTensor.of(values)
        return cls(*tensors, block_shift, keys.shape[0])

    @classmethod
    def of_codes(
        cls,
        tensors: Sequence[Tensor],
        codes: Sequence[RowCodes],
        block_shift: int,
        rests: Sequence[Tensor],
        rest_slots: Tensor,
        first_is_whole: bool,
    ) -> NativeKV:
        """Quantized keys and values (blocks, KV, 1 << block_shift, row bytes), and their rests."""
        native = map(NativeTensor.of_codes, tensors, codes)
        blocks, slots = tensors[0].shape[0], rests[0].shape[0]
        native_rests = map(NativeTensor.of_codes, rests, [each.rests for each in codes])
        address = _address(rest_slots, torch.int32, blocks)
        return cls(*native, block_shift, blocks, *native_rests, address, slots, first_is_whole)


class NativeBatch(c_structs.Batch):
    """The new tokens of some sequences."""

    @classmethod
    def of(
        cls,
        query_start: Tensor,
        context_lens: Tensor,
        block_tables: Tensor,
        slot_mapping: Tensor,
        attention_ends: Tensor | None,
    ) -> NativeBatch:
        """The tensors of an `AttentionBatch`. Raises ValueError for other shapes and types."""
        sequences, tokens = block_tables.shape[0], slot_mapping.shape[0]
        return cls(
            *block_tables.shape,
            tokens,
            _address(query_start, torch.int32, sequences + 1),
            _address(context_lens, torch.int32, sequences),
            _address(block_tables, torch.int32, block_tables.numel()),
            _address(slot_mapping, torch.int64, tokens),
            None if attention_ends is None else _address(attention_ends, torch.int64, tokens),
        )


class NativeStates(c_structs.StateBatch):
    """The new tokens of some sequences, and a layer's states of them.

    It has only addresses of states: the caller keeps the tensors alive.
    """

    @classmethod
    def of(
        cls, starts: ctypes.Array[ctypes.c_int32], recent: Sequence[int], state: Sequence[int]
    ) -> NativeStates:
        """`starts` are the first rows of all sequences, and the end of the last one.

        `recent` and `state` are the addresses of each sequence's inputs that a convolution
        remembers, and of its state.
        """
        pointers = ctypes.c_void_p * len(recent)
        arrays = (starts, pointers(*recent), pointers(*state))
        states = cls(len(recent), *[ctypes.addressof(each) for each in arrays])
        states._keep_alive = arrays
        return states

    @property
    def address(self) -> int:
        return ctypes.addressof(self)


def _address(x: Tensor, dtype: torch.dtype, values: int) -> int:
    """The address of a tensor with `values` values that native code may read."""
    if x.dtype is not dtype or x.numel() != values or not (x.is_cpu and x.is_contiguous()):
        raise ValueError(f"{x.dtype} {tuple(x.shape)} on {x.device} is not {values} of {dtype}")
    return x.data_ptr()
