"""Programs of operations that the native library interprets: a step, or a part of it, in one call.

Between two small operations of a decode step, Python's interpreter takes longer than the operations
themselves: reading the weights has evicted its memory from the processor's caches. The results
equal those of the separate operations bit for bit.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from mrs.graph.known_operations import SETTLED_OPERATIONS, unknown_field
from mrs.graph.operations import (
    Activate,
    Add,
    AddBias,
    Attend,
    AttendToImages,
    ChooseKeys,
    Clamp,
    Convolve,
    CutOff,
    DeltaRule,
    Embed,
    Join,
    Mix,
    Multiply,
    Normalize,
    Operation,
    Project,
    ProjectSmall,
    Rotate,
    Route,
    Scale,
    ScaleEach,
    ScaleToLength,
    Split,
    StateSpace,
    Weigh,
    WriteCache,
    Xielu,
)
from mrs.graph.program import Program, reads_states
from mrs.kernels import c_structs
from mrs.kernels.c_structs import Kind as _Kind
from mrs.kernels.c_structs import Operation as _Operation
from mrs.kernels.cpu.elementwise import ACTIVATION_CODES, gate_code
from mrs.kernels.cpu.library import NativeLibrary
from mrs.kernels.cpu.packed import ExpertOwner, ExpertSource, PackedMatrix
from mrs.kernels.delta_rule import L2_EPS
from mrs.kernels.native_structs import CACHE_TYPES, NativeStates
from mrs.kernels.paged import PagedKV
from mrs.kernels.xielu import XieluParameters, xielu_numbers
from mrs.layers.known_fields import Known, with_fields
from mrs.model.native_experts import native_experts, native_routing, router_vectors

#: Further fields are named like this: with_fields(SETTLED_OPERATIONS, ScaleEach="first second").
NATIVE: Known = with_fields(SETTLED_OPERATIONS, AttendToImages="x out attention")


class Weights(NamedTuple):
    """How a program finds the weights of a layer by their names; a vector may be missing."""

    matrix: Callable[[str], PackedMatrix]
    vector: Callable[[str], Tensor | None]


class Angles(NamedTuple):
    """cos and sin (T, pairs) of the new tokens, or of all positions for tokens at `positions`."""

    cos: Tensor
    sin: Tensor
    positions: Tensor | None = None


class HasAddress(Protocol):
    """What is passed to the library by the address of its C struct."""

    @property
    def address(self) -> int | None: ...


class CacheAccess(NamedTuple):
    """What a program reads: the cache of its attention, where the tokens are in it, and states.

    `given` are the values that come with the tokens, one after another, in float32. `index_cache`
    has the keys of its indexer, at the same places.
    """

    cache: HasAddress | None = None
    batch: HasAddress | None = None
    states: NativeStates | None = None
    given: Tensor | None = None
    index_cache: PagedKV | None = None


_NOTHING = CacheAccess()


class NativeProgram:
    """A program with the weights of one layer, or of what is around the layers."""

    def __init__(self, library: NativeLibrary, program: Program, weights: Weights) -> None:
        self.functions, self.plan = library.functions, program
        self._weights = weights
        self._keep_alive: list[object] = []
        self._numbers = {value: number for number, value in enumerate(program.places)}
        self.weight_bytes = 0
        #: Where its experts come from, if they are not always in memory.
        self.experts: ExpertSource | None = None
        self.has_index = any(isinstance(each, ChooseKeys) for each in program.operations)
        self.has_states = any(map(reads_states, program.operations))
        operations = [self._native(each) for each in program.operations]
        stretches = [c_structs.Stretch(each.end, each.most_rows) for each in program.stretches]
        arrays = (
            _array(c_structs.Place, [c_structs.Place(*place) for place in program.places.values()]),
            _array(_Operation, operations),
            _array(c_structs.Stretch, stretches),
        )
        addresses = map(ctypes.addressof, arrays)
        native = c_structs.Program(
            library.path_address, *addresses, len(stretches), program.kept_floats
        )
        self._keep_alive += [*arrays, native]
        self.address = ctypes.addressof(native)

    def _native(self, operation: Operation) -> _Operation:
        if (unknown := unknown_field(operation, NATIVE)) is not None:
            what = f"{unknown!r} of {type(operation).__name__}"
            raise TypeError(f"the native library has no {what}: see mrs.graph.known_operations")
        match operation:
            case Project():
                return self._project(operation)
            case Normalize():
                return self._normalize(operation)
            case AddBias():
                return self._made(_Kind.ADD_BIAS, operation.x, vector=operation.name)
            case Rotate():
                heads, interleaved = operation.heads, operation.rope.interleaved
                return self._made(_Kind.ROTATE, operation.x, heads=heads, interleaved=interleaved)
            case Clamp():
                least, most = operation.least, operation.most
                return self._made(_Kind.CLAMP, operation.x, least=least, factor=most)
            case WriteCache():
                return self._made(
                    _Kind.WRITE,
                    operation.keys,
                    operation.values_,
                    kv_heads=operation.kv_heads,
                    is_index=operation.is_index,
                )
            case ChooseKeys(x, weights, choice, heads):
                return self._made(_Kind.CHOOSE, x, weights, outs=(choice,), heads=heads)
            case Attend():
                return self._attend(operation)
            case AttendToImages(x, out, cross):
                return self._made(
                    _Kind.ATTEND,
                    x,
                    None,
                    outs=(out,),
                    factor=cross.scale,
                    heads=cross.heads,
                    kv_heads=cross.kv_heads,
                )
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
        return self._of_states(operation)

    def _of_states(self, operation: Operation) -> _Operation:
        """Of mixers with states, and of few others."""
        match operation:
            case Split(x, outs, runs):
                made = self._made(_Kind.SPLIT, x, outs=outs, heads=runs)
                made.count = len(outs)
                return made
            case Multiply(x, y):
                return self._made(_Kind.MULTIPLY, x, y)
            case ScaleEach(x, name, size):
                return self._made(_Kind.SCALE_EACH, x, vector=name, size=size)
            case ScaleToLength(x, size, length):
                weights = torch.full((size,), length * size**-0.5)
                eps = L2_EPS / size
                return self._made(
                    _Kind.NORMALIZE, x, outs=(x,), vector=weights, eps=eps, size=size, sets=1
                )
            case Join(x, y, out, runs, tail):
                vector = torch.tensor(tail) if y is None else None
                return self._made(_Kind.JOIN, x, y, outs=(out,), vector=vector, heads=runs)
            case CutOff(x, deviations):
                return self._made(_Kind.CUT_OFF, x, factor=deviations)
            case ProjectSmall():
                return self._project_small(operation)
            case Xielu(x, slot, values):
                return self._made(_Kind.XIELU, x, vector=self._xielu_numbers(slot, values))
            case Convolve():
                return self._convolve(operation)
            case DeltaRule():
                numbers = (operation.values_, operation.log_decays, operation.strengths)
                return self._made(
                    _Kind.DELTA_RULE,
                    operation.queries,
                    operation.keys,
                    outs=(operation.out,),
                    others=numbers,
                    heads=operation.heads,
                    kv_heads=operation.key_heads,
                    interleaved=operation.tiled,
                )
            case StateSpace():
                return self._made(
                    _Kind.STATE_SPACE,
                    operation.x,
                    outs=(operation.out,),
                    others=(operation.inputs, operation.outputs, operation.times),
                    vector="mixer.decay",
                    bias="mixer.skip",
                    heads=operation.heads,
                    kv_heads=operation.groups,
                    size=operation.decays,
                )
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

    def _project_small(self, operation: ProjectSmall) -> _Operation:
        matrices = self._weights.vector(operation.name)
        assert matrices is not None, operation.name
        self.weight_bytes += matrices.nbytes
        return self._made(
            _Kind.DENSE,
            operation.x,
            outs=(operation.out,),
            vector=matrices.contiguous(),
            type=CACHE_TYPES[matrices.dtype],
            heads=operation.heads,
            is_transposed=operation.is_transposed,
        )

    def _normalize(self, operation: Normalize) -> _Operation:
        norm, weights = operation.norm, None
        if norm.learned:
            weights = self._vector(f"{operation.slot}.weight")
        return self._made(
            _Kind.NORMALIZE,
            operation.x,
            outs=(operation.out,),
            vector=weights,
            bias=f"{operation.slot}.bias" if norm.bias else None,
            eps=norm.eps,
            size=operation.size,
            sets=1 if weights is None else weights.numel() // operation.size,
            is_centred=norm.kind == "layer",
        )

    def _convolve(self, operation: Convolve) -> _Operation:
        (x,) = operation.values_
        width = self.plan.places[x].width
        rows = slice(operation.first_row, operation.first_row + width)
        bias = self._vector(f"{operation.slot}.bias")[rows] if operation.bias else None
        return self._made(
            _Kind.CONVOLVE,
            x,
            vector=self._vector(f"{operation.slot}.weight")[rows],
            bias=bias,
            size=operation.taps,
            offset=operation.first_channel,
            activation=ACTIVATION_CODES["silu"] if operation.silu else -1,
        )

    def _xielu_numbers(self, slot: str, values: Sequence[float]) -> Tensor:
        names = XieluParameters._fields
        numbers = torch.tensor(values) if values else None
        parts = [self._vector(f"{slot}.{name}") for name in names] if numbers is None else numbers
        return xielu_numbers(XieluParameters(*parts))

    def _attend(self, operation: Attend) -> _Operation:
        attention = operation.attention
        return self._made(
            _Kind.ATTEND,
            operation.x,
            operation.choice,
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
        self.experts = matrices[0].source
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
        vector: str | Tensor | None = None,
        bias: str | Tensor | None = None,
        others: Sequence[int] = (),
        **fields: float,
    ) -> _Operation:
        """`matrices`, `vector` and `bias` are names of weights, or these themselves."""
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
            (ctypes.c_int64 * c_structs.MAX_PARTS)(*map(number, outs)),
            (ctypes.c_void_p * c_structs.MAX_OPERANDS)(*[matrix.address for matrix in packed]),
            self._address(vector),
            count=len(packed),
            others=(ctypes.c_int64 * 3)(*map(number, others)),
            bias=self._address(bias),
            **fields,
        )

    def _address(self, vector: str | Tensor | None) -> int | None:
        if vector is None:
            return None
        if isinstance(vector, str):
            return self._vector(vector).data_ptr()
        self._keep_alive.append(vector)
        return vector.data_ptr()

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


class NativeCall:
    """A call of programs, with the memory that they read and write; it may be repeated."""

    def __init__(
        self,
        functions: ctypes.CDLL,
        arguments: tuple[Any, ...],
        alive: object,
        experts: ExpertOwner | None,
    ) -> None:
        """`arguments` have addresses of what `alive` keeps alive; `experts` may be on disk."""
        self._functions, self._arguments, self._alive = functions, arguments, alive
        self._experts = experts

    def __call__(self) -> None:
        """Raises MemoryError, BadIndex for an id that has no embedding, and NotReadable."""
        try:
            self._functions.mrs_run(*self._arguments)
        except MemoryError:
            if self._experts is not None:
                self._experts.raise_failure()
            raise


class NativeRun:
    """Programs that one call runs, one after another."""

    def __init__(self, programs: Sequence[NativeProgram], ropes: Sequence[int | None]) -> None:
        """`ropes` index, for each program, the angles of a step; None: it has no rope."""
        self._programs = programs
        self._functions = programs[0].functions
        count = len(programs)
        self._pointers = ctypes.c_void_p * count
        self._addresses = self._pointers(*[each.address for each in programs])
        last = max((each for each in ropes if each is not None), default=0)
        self._several_angles, size = c_structs.Angles * (last + 1), ctypes.sizeof(c_structs.Angles)
        self._angle_offsets = [None if each is None else each * size for each in ropes]
        self.weight_bytes = sum(each.weight_bytes for each in programs)
        sources = [each.experts for each in programs if each.experts is not None]
        self._experts = sources[0].owner if sources else None
        self._has_index = any(each.has_index for each in programs)
        self._has_states = any(each.has_states for each in programs)
        self._reads_given = any(each.plan.given for each in programs)
        self._none = self._pointers()
        self._arena_floats: dict[int, int] = {}

    def arena_floats(self, tokens: int) -> int:
        """Floats between the first and the last values of so many tokens."""
        floats = self._arena_floats.get(tokens)
        if floats is None:
            floats = max(each.plan.arena_floats(tokens) for each in self._programs)
            self._arena_floats[tokens] = floats
        return floats

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

        `accesses` has for each program what it reads beside the stream. With `ids` (N) the stream
        is written before it is read, and `result` if a program has one. Raises MemoryError, also
        for an id that has no embedding.
        """
        self.prepare(stream, accesses, angles, ids=ids, arena=arena, result=result)()

    def prepare(
        self,
        stream: Tensor,
        accesses: Sequence[CacheAccess | None] = (),
        angles: Sequence[Angles] = (),
        *,
        ids: Tensor | None = None,
        arena: Tensor | None = None,
        result: Tensor | None = None,
    ) -> NativeCall:
        """The call that does so."""
        tokens = stream.shape[0]
        several = self._several_angles()
        for native, (cos, sin, positions) in zip(several, angles, strict=False):
            native.cos, native.sin = cos.data_ptr(), sin.data_ptr()
            native.rows, native.pairs = cos.shape
            native.positions = None if positions is None else positions.data_ptr()
        first = ctypes.addressof(several)
        offsets = self._angle_offsets
        turned = self._pointers(*[None if each is None else first + each for each in offsets])
        if arena is None:
            arena = torch.empty(self.arena_floats(tokens))
        accesses = accesses or [None] * len(self._programs)
        read = [_NOTHING if each is None else each for each in accesses]
        caches = self._pointers(*[None if x.cache is None else x.cache.address for x in read])
        batches = self._pointers(*[None if x.batch is None else x.batch.address for x in read])
        states = given = index = self._none
        if self._has_index:
            keys = [x.index_cache for x in read]
            index = self._pointers(*[None if x is None else x.address for x in keys])
        if self._has_states:
            states = self._pointers(*[x.states and x.states.address for x in read])  # type: ignore[misc]
        if self._reads_given:
            inputs = [x.given for x in read]
            given = self._pointers(*[None if x is None else x.data_ptr() for x in inputs])
        pointers = caches, batches, turned, states, given, index
        step = c_structs.Step(
            tokens,
            stream.data_ptr(),
            arena.data_ptr(),
            None if result is None else result.data_ptr(),
            None if ids is None else ids.data_ptr(),
            *map(ctypes.addressof, pointers),
        )
        count, address = len(self._programs), ctypes.addressof(step)
        arguments = self._addresses, count, address, torch.get_num_threads()
        alive = step, pointers, several, stream, arena, result, ids, accesses, angles
        return NativeCall(self._functions, arguments, alive, self._experts)


def _array(kind: type[ctypes.Structure], items: Sequence[ctypes.Structure]) -> ctypes.Array[Any]:
    return (kind * len(items))(*items)
