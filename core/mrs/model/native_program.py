"""Programs of operations that the native library interprets: a step, or a part of it, in one call.

Between two small operations of a decode step, Python's interpreter takes longer than the operations
themselves: reading the weights has evicted its memory from the processor's caches. The results
equal those of the separate operations bit for bit.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mrs.graph.operations import (
    Activate,
    Add,
    AddBias,
    Attend,
    Clamp,
    Embed,
    Mix,
    Normalize,
    Operation,
    Project,
    Rotate,
    Route,
    Scale,
    Weigh,
    WriteCache,
)
from mrs.graph.program import Program
from mrs.kernels.cpu.elementwise import gate_code
from mrs.kernels.cpu.library import NativeLibrary
from mrs.kernels.cpu.packed import PackedMatrix
from mrs.kernels.paged import AttentionBatch, PagedKV
from mrs.model.native_experts import native_experts, native_routing, router_vectors

#: As in native/gemm/products.h.
_MAX_OPERANDS = 4


class _Kind(IntEnum):
    """The kinds of native/program.h, in its order."""

    PROJECT, NORMALIZE, ADD_BIAS, ROTATE, CLAMP, WRITE, ATTEND, ACTIVATE, ADD, SCALE, EMBED = range(
        11
    )
    ROUTE, MIX, WEIGH = range(11, 14)


class _Place(ctypes.Structure):
    """A C struct of native/program.h, as are all of this file."""

    _fields_ = tuple((name, ctypes.c_int64) for name in ("space", "offset", "width"))


class _Operation(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("kind", "x", "y", "added", "normed")),
        ("outs", ctypes.c_int64 * _MAX_OPERANDS),
        ("matrices", ctypes.c_void_p * _MAX_OPERANDS),
        ("vector", ctypes.c_void_p),
        *((name, ctypes.c_double) for name in ("eps", "factor", "softcap")),
        *((name, ctypes.c_int64) for name in ("count", "size", "activation", "heads", "kv_heads")),
        *((name, ctypes.c_int64) for name in ("window", "interleaved")),
        *((name, ctypes.c_void_p) for name in ("routing", "experts")),
    )


class _Stretch(ctypes.Structure):
    _fields_ = (("end", ctypes.c_int64), ("piece_rows", ctypes.c_int64))


class _Program(ctypes.Structure):
    _fields_ = (
        ("kernels", ctypes.c_void_p),
        ("places", ctypes.c_void_p),
        ("operations", ctypes.c_void_p),
        ("stretches", ctypes.c_void_p),
        ("stretch_count", ctypes.c_int64),
        ("kept_floats", ctypes.c_int64),
    )


class _Angles(ctypes.Structure):
    _fields_ = (
        ("cos", ctypes.c_void_p),
        ("sin", ctypes.c_void_p),
        ("positions", ctypes.c_void_p),
        ("pairs", ctypes.c_int64),
        ("rows", ctypes.c_int64),
    )


class _Step(ctypes.Structure):
    _fields_ = (
        ("tokens", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("stream", "arena", "result", "ids")),
        *((name, ctypes.c_void_p) for name in ("caches", "batches", "angles")),
    )


class Weights(NamedTuple):
    """How a program finds the weights of a layer by their names; a vector may be missing."""

    matrix: Callable[[str], PackedMatrix]
    vector: Callable[[str], Tensor | None]


class Angles(NamedTuple):
    """cos and sin (T, pairs) of the new tokens, or of all positions for tokens at `positions`."""

    cos: Tensor
    sin: Tensor
    positions: Tensor | None = None


class CacheAccess(NamedTuple):
    """What the attention of a program reads: its cache, and where the tokens are in it."""

    cache: PagedKV
    batch: AttentionBatch


class NativeProgram:
    """A program with the weights of one layer, or of what is around the layers."""

    def __init__(self, library: NativeLibrary, program: Program, weights: Weights) -> None:
        self.functions, self.plan = library.functions, program
        self._weights = weights
        self._keep_alive: list[object] = []
        self._numbers = {value: number for number, value in enumerate(program.places)}
        self.weight_bytes = 0
        operations = [self._native(each) for each in program.operations]
        stretches = [_Stretch(each.end, each.most_rows) for each in program.stretches]
        arrays = (
            _array(_Place, [_Place(*place) for place in program.places.values()]),
            _array(_Operation, operations),
            _array(_Stretch, stretches),
        )
        addresses = map(ctypes.addressof, arrays)
        native = _Program(library.path_address, *addresses, len(stretches), program.kept_floats)
        self._keep_alive += [*arrays, native]
        self.address = ctypes.addressof(native)

    def _native(self, operation: Operation) -> _Operation:
        match operation:
            case Project():
                return self._project(operation)
            case Normalize():
                return self._made(
                    _Kind.NORMALIZE,
                    operation.x,
                    outs=(operation.out,),
                    vector=f"{operation.slot}.weight",
                    eps=operation.norm.eps,
                    size=operation.size,
                )
            case AddBias():
                return self._made(_Kind.ADD_BIAS, operation.x, vector=f"{operation.slot}.bias")
            case Rotate():
                heads, interleaved = operation.heads, operation.rope.interleaved
                return self._made(_Kind.ROTATE, operation.x, heads=heads, interleaved=interleaved)
            case Clamp():
                return self._made(_Kind.CLAMP, operation.x, factor=operation.bound)
            case WriteCache():
                return self._made(
                    _Kind.WRITE, operation.keys, operation.values_, kv_heads=operation.kv_heads
                )
            case Attend():
                return self._attend(operation)
            case Activate():
                code, bound = gate_code(operation.activation, operation.clamp)
                return self._made(
                    _Kind.ACTIVATE, operation.x, operation.up, activation=code, factor=bound
                )
            case Add():
                return self._made(_Kind.ADD, operation.x, operation.y)
            case Scale():
                return self._made(_Kind.SCALE, operation.x, factor=self._factor(operation.factor))
            case Embed():
                return self._made(_Kind.EMBED, operation.out, matrices=(operation.slot,))
            case Route():
                return self._route(operation)
            case Mix():
                return self._mix(operation)
            case Weigh(x, y, gate, slot):
                return self._made(_Kind.WEIGH, x, y, outs=(gate,), vector=f"{slot}.weight")
        raise TypeError(f"the native library has no {type(operation).__name__}")

    def _project(self, product: Project) -> _Operation:
        norm = product.norm
        return self._made(
            _Kind.PROJECT,
            product.x,
            added=product.added,
            normed=product.normed,
            outs=product.outs,
            matrices=product.slots,
            vector=f"{norm.slot}.weight" if norm else None,
            eps=norm.norm.eps if norm else 0.0,
        )

    def _attend(self, operation: Attend) -> _Operation:
        attention = operation.attention
        return self._made(
            _Kind.ATTEND,
            operation.x,
            outs=(operation.out,),
            vector="mixer.sinks" if attention.sinks else None,
            factor=attention.scale,
            softcap=attention.softcap or 0.0,
            heads=attention.heads,
            kv_heads=attention.kv_heads,
            window=attention.window or 0,
        )

    def _route(self, operation: Route) -> _Operation:
        vectors = router_vectors(operation.router, self._optional_vector)
        routing = native_routing(operation.router, vectors)
        self._keep_alive += [vectors, routing]
        outs = operation.choice, operation.scores, operation.ranks
        address = ctypes.addressof(routing)
        normed = operation.normed
        return self._made(_Kind.ROUTE, operation.x, normed=normed, outs=outs, routing=address)

    def _mix(self, operation: Mix) -> _Operation:
        slots, moe = operation.slots, operation.moe
        matrices = [self._weights.matrix(slot) for slot in slots]
        biases = [self._vector(f"{slot}.bias") for slot in slots] if moe.expert.bias else []
        experts, alive = native_experts(moe, matrices, biases)
        self.weight_bytes += sum(matrix.nbytes for matrix in matrices)
        self._keep_alive.append(alive)
        outs = operation.out, operation.rows, operation.hidden, operation.order
        address = ctypes.addressof(experts)
        return self._made(_Kind.MIX, operation.x, operation.choice, outs=outs, experts=address)

    def _made(
        self,
        kind: _Kind,
        x: int,
        y: int | None = None,
        *,
        added: int | None = None,
        normed: int | None = None,
        outs: Sequence[int] = (),
        matrices: Sequence[str] = (),
        vector: str | None = None,
        **fields: float,
    ) -> _Operation:
        number = self._number
        packed = [self._weights.matrix(slot) for slot in matrices]
        self.weight_bytes += sum(matrix.nbytes for matrix in packed)
        self._keep_alive += packed
        return _Operation(
            kind,
            number(x),
            number(y),
            number(added),
            number(normed),
            (ctypes.c_int64 * _MAX_OPERANDS)(*map(number, outs)),
            (ctypes.c_void_p * _MAX_OPERANDS)(*[matrix.address for matrix in packed]),
            None if vector is None else self._vector(vector).data_ptr(),
            count=len(packed),
            **fields,
        )

    def _number(self, value: int | None) -> int:
        return -1 if value is None else self._numbers[value]

    def _vector(self, name: str) -> Tensor:
        vector = self._optional_vector(name)
        assert vector is not None, name
        self._keep_alive.append(vector)
        return vector

    def _optional_vector(self, name: str) -> Tensor | None:
        vector = self._weights.vector(name)
        return None if vector is None else vector.float().contiguous()

    def _factor(self, factor: float | str) -> float:
        return float(self._vector(factor)) if isinstance(factor, str) else factor


class NativeRun:
    """Programs that one call runs, one after another."""

    def __init__(self, programs: Sequence[NativeProgram], ropes: Sequence[int | None]) -> None:
        """`ropes` index, for each program, the angles of a step; None: it has no rope."""
        self._programs = programs
        self._functions = programs[0].functions
        count = len(programs)
        self._pointers = ctypes.c_void_p * count
        self._addresses = self._pointers(*[each.address for each in programs])
        self._angles = (
            _Angles * (max((each for each in ropes if each is not None), default=0) + 1)
        )()
        self._angle_pointers = self._pointers(
            *[None if each is None else ctypes.addressof(self._angles[each]) for each in ropes]
        )
        self.weight_bytes = sum(each.weight_bytes for each in programs)

    def arena_floats(self, tokens: int) -> int:
        """Floats between the first and the last values of so many tokens."""
        return max(each.plan.arena_floats(tokens) for each in self._programs)

    def __call__(
        self,
        stream: Tensor,
        accesses: Sequence[CacheAccess | None] = (),
        angles: Sequence[Angles] = (),
        *,
        ids: Tensor | None = None,
        arena: Tensor | None = None,
        result: Tensor | None = None,
    ) -> None:
        """Change `stream` (N, hidden), of at least one row, from its first to its last value.

        `accesses` has for each program what its attention reads. With `ids` (N) the stream is
        written before it is read, and `result` if a program has one. Raises MemoryError, also
        for an id that has no embedding.
        """
        tokens = stream.shape[0]
        for native, (cos, sin, positions) in zip(self._angles, angles, strict=False):
            native.cos, native.sin = cos.data_ptr(), sin.data_ptr()
            native.rows, native.pairs = cos.shape
            native.positions = None if positions is None else positions.data_ptr()
        if arena is None:
            arena = torch.empty(self.arena_floats(tokens))
        accesses = accesses or [None] * len(self._programs)
        caches = self._pointers(*[each and each.cache.address for each in accesses])
        batches = self._pointers(*[each and each.batch.address for each in accesses])
        step = _Step(
            tokens,
            stream.data_ptr(),
            arena.data_ptr(),
            None if result is None else result.data_ptr(),
            None if ids is None else ids.data_ptr(),
            *map(ctypes.addressof, (caches, batches, self._angle_pointers)),
        )
        self._functions.mrs_run(
            self._addresses, len(self._programs), ctypes.addressof(step), torch.get_num_threads()
        )


def _array(kind: type[ctypes.Structure], items: Sequence[ctypes.Structure]) -> ctypes.Array[Any]:
    return (kind * len(items))(*items)
