"""The structs and functions of the native library.

Made of its headers and sources by `python -m mrs.kernels.cpu.native.structs`: do not edit.
"""

from __future__ import annotations

import ctypes
from enum import IntEnum

#: Addresses, and numbers as C calls them: int, long and float.
_A, _I, _L, _F = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_float

MAX_OPERANDS = 4
MAX_PARTS = 5


class Kind(IntEnum):
    """Of program.h."""

    PROJECT = 0
    NORMALIZE = 1
    ADD_BIAS = 2
    ROTATE = 3
    CLAMP = 4
    WRITE = 5
    ATTEND = 6
    ACTIVATE = 7
    ADD = 8
    SCALE = 9
    EMBED = 10
    ROUTE = 11
    MIX = 12
    WEIGH = 13
    SPLIT = 14
    MULTIPLY = 15
    SCALE_EACH = 16
    DENSE = 17
    CONVOLVE = 18
    DELTA_RULE = 19
    STATE_SPACE = 20
    XIELU = 21
    JOIN = 22
    CUT_OFF = 23
    CHOOSE = 24


class Matrix(ctypes.Structure):
    """Of gemm/products.h."""

    _fields_ = (
        ("kernels", ctypes.c_void_p),
        ("format", ctypes.c_int64),
        ("rows", ctypes.c_int64),
        ("columns", ctypes.c_int64),
        ("packed", ctypes.c_void_p),
        ("subnormal", ctypes.c_void_p),
        ("order", ctypes.c_void_p),
        ("residuals", ctypes.c_bool),
    )


class Outcome(ctypes.Structure):
    """Of bounds.h."""

    _fields_ = (
        ("code", ctypes.c_int64),
        ("value", ctypes.c_int64),
        ("count", ctypes.c_int64),
    )


class CacheTensor(ctypes.Structure):
    """Of attention/attention.h."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("type", ctypes.c_int64),
        ("dim", ctypes.c_int64),
        ("block_stride", ctypes.c_int64),
        ("head_stride", ctypes.c_int64),
        ("token_stride", ctypes.c_int64),
    )


class KVCache(ctypes.Structure):
    """Of attention/attention.h."""

    _fields_ = (
        ("keys", CacheTensor),
        ("values", CacheTensor),
        ("block_shift", ctypes.c_int64),
        ("blocks", ctypes.c_int64),
        ("key_rests", CacheTensor),
        ("value_rests", CacheTensor),
        ("rest_slots", ctypes.c_void_p),
        ("slots", ctypes.c_int64),
        ("first_is_whole", ctypes.c_int64),
    )


class Batch(ctypes.Structure):
    """Of attention/attention.h."""

    _fields_ = (
        ("sequences", ctypes.c_int64),
        ("table_blocks", ctypes.c_int64),
        ("tokens", ctypes.c_int64),
        ("query_start", ctypes.c_void_p),
        ("context_lens", ctypes.c_void_p),
        ("block_tables", ctypes.c_void_p),
        ("slot_mapping", ctypes.c_void_p),
        ("attention_ends", ctypes.c_void_p),
    )


class AttentionParams(ctypes.Structure):
    """Of attention/attention.h."""

    _fields_ = (
        ("q", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("cache", ctypes.c_void_p),
        ("batch", ctypes.c_void_p),
        ("sinks", ctypes.c_void_p),
        ("tokens", ctypes.c_int64),
        ("heads", ctypes.c_int64),
        ("kv_heads", ctypes.c_int64),
        ("window", ctypes.c_int64),
        ("scale", ctypes.c_double),
        ("softcap", ctypes.c_double),
        ("chosen", ctypes.c_void_p),
        ("most_chosen", ctypes.c_int64),
    )


class DenseProduct(ctypes.Structure):
    """Of dense/dense.h."""

    _fields_ = (
        ("x", ctypes.c_void_p),
        ("weights", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("type", ctypes.c_int64),
        ("tokens", ctypes.c_int64),
        ("heads", ctypes.c_int64),
        ("depth", ctypes.c_int64),
        ("rows", ctypes.c_int64),
        ("x_token_step", ctypes.c_int64),
        ("x_head_step", ctypes.c_int64),
        ("head_step", ctypes.c_int64),
        ("row_step", ctypes.c_int64),
        ("depth_step", ctypes.c_int64),
    )


class Routing(ctypes.Structure):
    """Of experts.h."""

    _fields_ = (
        ("weight", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("correction", ctypes.c_void_p),
        ("expert_scale", ctypes.c_void_p),
        ("input_norm", ctypes.c_void_p),
        ("experts", ctypes.c_int64),
        ("hidden", ctypes.c_int64),
        ("top_k", ctypes.c_int64),
        ("scoring", ctypes.c_int64),
        ("groups", ctypes.c_int64),
        ("top_groups", ctypes.c_int64),
        ("group_experts", ctypes.c_int64),
        ("normalizes", ctypes.c_int64),
        ("scale", ctypes.c_double),
        ("eps", ctypes.c_double),
        ("jitter", ctypes.c_double),
    )


class Place(ctypes.Structure):
    """Of program.h."""

    _fields_ = (
        ("space", ctypes.c_int64),
        ("offset", ctypes.c_int64),
        ("width", ctypes.c_int64),
    )


class Experts(ctypes.Structure):
    """Of experts.h."""

    _fields_ = (
        ("matrices", ctypes.c_void_p),
        ("biases", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("top_k", ctypes.c_int64),
        ("width", ctypes.c_int64),
        ("intermediate", ctypes.c_int64),
        ("activation", ctypes.c_int64),
        ("weighs_input", ctypes.c_int64),
        ("bound", ctypes.c_double),
        ("fetch", ctypes.c_int64),
        ("layer", ctypes.c_int64),
        ("room", ctypes.c_void_p),
        ("room_bytes", ctypes.c_int64),
    )


class Operation(ctypes.Structure):
    """Of program.h."""

    _fields_ = (
        ("kind", ctypes.c_int64),
        ("x", ctypes.c_int64),
        ("y", ctypes.c_int64),
        ("added", ctypes.c_int64),
        ("normed", ctypes.c_int64),
        ("outs", ctypes.c_int64 * MAX_PARTS),
        ("matrices", ctypes.c_void_p * MAX_OPERANDS),
        ("vector", ctypes.c_void_p),
        ("eps", ctypes.c_double),
        ("factor", ctypes.c_double),
        ("softcap", ctypes.c_double),
        ("count", ctypes.c_int64),
        ("size", ctypes.c_int64),
        ("activation", ctypes.c_int64),
        ("heads", ctypes.c_int64),
        ("kv_heads", ctypes.c_int64),
        ("window", ctypes.c_int64),
        ("interleaved", ctypes.c_int64),
        ("routing", ctypes.c_void_p),
        ("experts", ctypes.c_void_p),
        ("others", ctypes.c_int64 * 3),
        ("bias", ctypes.c_void_p),
        ("least", ctypes.c_double),
        ("offset", ctypes.c_int64),
        ("sets", ctypes.c_int64),
        ("is_centred", ctypes.c_int64),
        ("type", ctypes.c_int64),
        ("is_transposed", ctypes.c_int64),
        ("is_index", ctypes.c_int64),
    )


class Stretch(ctypes.Structure):
    """Of program.h."""

    _fields_ = (
        ("end", ctypes.c_int64),
        ("piece_rows", ctypes.c_int64),
    )


class Program(ctypes.Structure):
    """Of program.h."""

    _fields_ = (
        ("kernels", ctypes.c_void_p),
        ("places", ctypes.c_void_p),
        ("operations", ctypes.c_void_p),
        ("stretches", ctypes.c_void_p),
        ("stretch_count", ctypes.c_int64),
        ("kept_floats", ctypes.c_int64),
    )


class Angles(ctypes.Structure):
    """Of program.h."""

    _fields_ = (
        ("cos", ctypes.c_void_p),
        ("sin", ctypes.c_void_p),
        ("positions", ctypes.c_void_p),
        ("pairs", ctypes.c_int64),
        ("rows", ctypes.c_int64),
    )


class StateBatch(ctypes.Structure):
    """Of recurrent/state_batch.h."""

    _fields_ = (
        ("sequences", ctypes.c_int64),
        ("starts", ctypes.c_void_p),
        ("recent", ctypes.c_void_p),
        ("state", ctypes.c_void_p),
    )


class Step(ctypes.Structure):
    """Of program.h."""

    _fields_ = (
        ("tokens", ctypes.c_int64),
        ("stream", ctypes.c_void_p),
        ("arena", ctypes.c_void_p),
        ("result", ctypes.c_void_p),
        ("ids", ctypes.c_void_p),
        ("caches", ctypes.c_void_p),
        ("batches", ctypes.c_void_p),
        ("angles", ctypes.c_void_p),
        ("states", ctypes.c_void_p),
        ("given", ctypes.c_void_p),
        ("index_caches", ctypes.c_void_p),
    )


class Convolution(ctypes.Structure):
    """Of recurrent/convolution.h."""

    _fields_ = (
        ("x", ctypes.c_void_p),
        ("weight", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("recent", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("tokens", ctypes.c_int64),
        ("channels", ctypes.c_int64),
        ("taps", ctypes.c_int64),
        ("x_step", ctypes.c_int64),
        ("out_step", ctypes.c_int64),
        ("silu", ctypes.c_bool),
    )


class DeltaRule(ctypes.Structure):
    """Of recurrent/delta_rule.h."""

    _fields_ = (
        ("q", ctypes.c_void_p),
        ("k", ctypes.c_void_p),
        ("v", ctypes.c_void_p),
        ("log_decay", ctypes.c_void_p),
        ("beta", ctypes.c_void_p),
        ("state", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("tokens", ctypes.c_int64),
        ("heads", ctypes.c_int64),
        ("key_heads", ctypes.c_int64),
        ("key_dim", ctypes.c_int64),
        ("value_dim", ctypes.c_int64),
        ("tiled", ctypes.c_bool),
    )


class StateSpace(ctypes.Structure):
    """Of recurrent/state_space.h."""

    _fields_ = (
        ("x", ctypes.c_void_p),
        ("b", ctypes.c_void_p),
        ("c", ctypes.c_void_p),
        ("times", ctypes.c_void_p),
        ("decay", ctypes.c_void_p),
        ("skip", ctypes.c_void_p),
        ("state", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("tokens", ctypes.c_int64),
        ("heads", ctypes.c_int64),
        ("groups", ctypes.c_int64),
        ("head_dim", ctypes.c_int64),
        ("state_dim", ctypes.c_int64),
        ("x_step", ctypes.c_int64),
        ("b_step", ctypes.c_int64),
        ("c_step", ctypes.c_int64),
        ("decays", ctypes.c_int64),
    )


#: Of each exported function, the types of its result and of its parameters.
SIGNATURES: dict[str, tuple[type | None, tuple[type, ...]]] = {
    "mrs_attend": (Outcome, (_A, _A, _I)),
    "mrs_convolve": (None, (_A, _A, _I)),
    "mrs_cut_off": (None, (_A, _L, _L, ctypes.c_double, _I)),
    "mrs_decode": (Outcome, (_A, _A, _L, _I, _A, _I)),
    "mrs_delta_rule": (Outcome, (_A, _A, _I)),
    "mrs_encode": (None, (_A, _I, _A, _I, _L, _A, _L, _A, _I)),
    "mrs_gate": (None, (_A, _I, _A, _A, _L, _I)),
    "mrs_key_delta_rule": (Outcome, (_A, _A, _I)),
    "mrs_layer_norm": (None, (_A, _A, _A, _A, _F, _L, _L, _L, _A, _I)),
    "mrs_mark_subnormal": (None, (_A, _I)),
    "mrs_matmul": (Outcome, (_A, _A, _I, _L, _A, _I)),
    "mrs_multiply_dense": (None, (_A, _A, _I)),
    "mrs_multiply_registers": (_L, (_A, _I, _L, _I)),
    "mrs_pack": (None, (_A, _A, _L, _L, _L, _I)),
    "mrs_packed_bytes": (_L, (_I, _L, _L)),
    "mrs_path": (_A, (ctypes.c_char_p,)),
    "mrs_read": (None, (_A, _A, _L, _I)),
    "mrs_rms_norm": (None, (_A, _A, _A, _F, _L, _L, _A, _I)),
    "mrs_rotate": (None, (_A, _A, _A, _A, _L, _L, _L, _L, _I, _A, _I)),
    "mrs_route": (None, (_A, _A, _A, _L, _A, _A, _A, _A, _I)),
    "mrs_row_bytes": (_L, (_I, _L)),
    "mrs_run": (Outcome, (_A, _L, _A, _I)),
    "mrs_scratch_peak": (_L, ()),
    "mrs_state_space": (None, (_A, _A, _I)),
    "mrs_write_kv": (Outcome, (_A, _A, _A, _A, _A, _L, _L, _I)),
    "mrs_xielu": (None, (_A, _A, _A, _L, _I)),
}
