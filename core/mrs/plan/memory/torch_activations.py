"""Activation bytes of operations that torch computes one by one, by the life of their values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from mrs.formats import FORMATS
from mrs.graph.feed_forward_operations import transform
from mrs.graph.operations import (
    STREAM,
    Activate,
    Add,
    Attend,
    AttendBothWays,
    AttendToImages,
    ChooseKeys,
    ChosenKeys,
    Compute,
    Convolve,
    DeltaRule,
    Graph,
    Join,
    Mix,
    Normalize,
    Operation,
    Project,
    ProjectSmall,
    Rotate,
    Route,
    Scale,
    ScaleToLength,
    Split,
    StateSpace,
    Take,
    Weigh,
    WriteImage,
    Xielu,
    last_uses,
)
from mrs.kernels.native_limits import ACTIVATIONS
from mrs.kernels.workspace.experts import choice_floats, rank_floats
from mrs.layers.attention.memory import (
    attend_bytes,
    attend_to_chosen_bytes,
    attend_to_images_bytes,
)
from mrs.layers.forward_pass import (
    ForwardShape,
    StorageOf,
    head_product_bytes,
    norm_bytes,
    product_bytes,
)
from mrs.layers.moe.spec import Moe, Router
from mrs.layers.relative_attention.memory import relative_attention_bytes
from mrs.layers.relative_attention.spec import RelativeAttention
from mrs.layers.rope.memory import rotation_bytes, table_growth_bytes
from mrs.plan.memory.state_activations import state_scratch_bytes

#: Peak bytes of what a module of a layer makes of x (T, h), without x, by its name.
ModuleBytes = Callable[[str], int]


def torch_bytes(
    operations: Sequence[Operation],
    graph: Graph,
    shape: ForwardShape,
    storage_of: StorageOf,
    module_bytes: ModuleBytes,
    *,
    owns_stream: bool = False,
) -> int:
    """Peak bytes of some operations, with the input of the layer.

    That lives as long as they do. The stream is that input until one of them writes to it, unless
    they `own` it.
    """
    scratch = _Scratch(graph, shape, storage_of, module_bytes)
    uses, stream = last_uses(operations), shape.size(graph.widths[STREAM])
    alive: dict[int, int] = {STREAM: stream} if owns_stream else {}
    peak = stream
    for index, each in enumerate(operations):
        needed = scratch.of(each)
        if isinstance(each, Add | Scale) and each.x == STREAM not in alive:
            needed = stream
        peak = max(peak, stream + sum(alive.values()) + needed)
        kept = {*each.reads, *_made(each)} - {STREAM}
        alive |= {value: scratch.size(value) for value in kept}
        if STREAM in each.writes:
            alive[STREAM] = stream
        for value in each.values:
            if value != STREAM and uses[value] == index:
                alive.pop(value, None)
    return peak


def _made(operation: Operation) -> tuple[int, ...]:
    """The values that an operation makes; torch needs none of the room of native ones."""
    match operation:
        case Route(_, choice):
            return (choice,)
        case Mix(_, _, out):
            return (out,)
        case Weigh():
            return ()
    return operation.writes


class _Scratch:
    """What operations allocate while torch computes them, beside the values that they read."""

    def __init__(
        self,
        graph: Graph,
        shape: ForwardShape,
        storage_of: StorageOf,
        module_bytes: ModuleBytes,
    ) -> None:
        self._widths, self._wide, self._shape = graph.widths, graph.wide, shape
        self._given = graph.given
        self._in_float32 = replace(shape, activation=FORMATS["F32"])
        self._storage_of, self._module_bytes = storage_of, module_bytes

    def size(self, value: int) -> int:
        """Bytes of a value; those of a choice of keys stay until the end of the step."""
        if isinstance(self._given.get(value), ChosenKeys):
            return 0
        return self._shape_of(value).size(self._widths[value])

    def of(self, operation: Operation) -> int:
        """Peak bytes with the new values; most operations change what they read.

        Torch attends to the keys of one sequence after another, and then joins the results.
        """
        match operation:
            case Normalize(x):
                return norm_bytes(self._shape_of(x), self._widths[x])
            case Project():
                return self._products(operation)
            case Activate(x, up, activation):
                return self._activation(x, up, activation)
            case Rotate(x, heads, rope):
                one, dim = self._shape.of_one_sequence(), self._widths[x] // heads
                rotation = rotation_bytes(self._shape, heads, dim, rope)
                return max(rotation, table_growth_bytes(one, rope))
            case Split() | Join() | Take():
                return sum(map(self.size, operation.writes))
            case ProjectSmall():
                return self._small_product(operation)
            case ChooseKeys():
                return self._choosing(operation)
            case Attend(_, out, attention, int(choice)) if self._is_chosen(choice):
                one, top_k = self._shape.of_one_sequence(), self._widths[choice]
                results = self._shape.size(self._widths[out])
                return 2 * results + attend_to_chosen_bytes(attention, top_k, one)
            case AttendBothWays(_, _, _, out, RelativeAttention() as relative):
                one, width = self._shape.of_one_sequence(), self._widths[STREAM]
                attending = relative_attention_bytes(relative, one, width, self._storage_of)
                return attending + self._shape.size(self._widths[out])
            case Attend(_, out, attention) | AttendBothWays(_, _, _, out, attention):
                one, width = self._shape.of_one_sequence(), self._widths[out]
                results, of_one = self._shape.size(width), one.size(width)
                attending = results - of_one + attend_bytes(attention, one)
                return attending if results == of_one else max(attending, 2 * results)
            case AttendToImages(_, out, cross):
                results, one = self.size(out), self._shape.of_one_sequence()
                attending = attend_to_images_bytes(cross, one) - one.size(self._widths[out])
                return max(results + attending, 2 * results)
            case WriteImage():
                return self._joined_images(operation)
            case Xielu(x) if not self._shape.native:
                mask = self._shape.tokens * self._widths[x]
                return 3 * self._shape.size(self._widths[x]) + mask
            case Route(x, _, _, _, _, router):
                return self._routing(router, self._widths[x])
            case Mix():
                return self._mixture(operation.moe, self._widths[operation.x])
            case Weigh(_, y):
                return self._widened(self._widths[y]) + 8 * self._shape.tokens
            case Compute(_, _, module):
                return self._module_bytes(module)
            case ScaleToLength(x, size):
                return self.size(x) + 3 * self.size(x) // size
            case Convolve() | DeltaRule() | StateSpace():
                return state_scratch_bytes(operation, self._widths, self._wide, self._shape)
        return 0

    def _shape_of(self, value: int) -> ForwardShape:
        return self._in_float32 if value in self._wide else self._shape

    def _cast(self, x: int) -> int:
        """x in float32, unless it is."""
        return 0 if x in self._wide else self._widened(self._widths[x])

    def _products(self, product: Project) -> int:
        made, peak, columns = 0, 0, self._widths[product.x]
        narrow = self._shape.size(columns)
        cast = narrow if self.size(product.x) > narrow else 0
        for out, slot in zip(product.outs, product.slots, strict=True):
            rows = self._widths[out]
            needed = product_bytes(self._shape, columns, rows, self._storage_of(slot))
            if self.size(out) > self._shape.size(rows):
                needed = max(needed, self._shape.size(rows) + self.size(out))
            peak, made = max(peak, made + needed), made + self.size(out)
        return cast + peak

    def _is_chosen(self, choice: int) -> bool:
        """Whether sequences have more tokens than a choice has positions."""
        return self._shape.context_tokens > self._widths[choice]

    def _joined_images(self, written: WriteImage) -> int:
        """Keys and values of all images in new memory, if there are several.

        Those of this image in the type of activations are freed before.
        """
        keys, width = self._shape.image_keys, sum(self._widths[x] for x in written.reads)
        if keys <= self._shape.tokens:
            return 0
        joined = keys * width * self._shape.cache.block_bytes
        return max(0, joined - self._shape.size(width))

    def _small_product(self, product: ProjectSmall) -> int:
        """x and the result in float32, or what heads with matrices of their own take."""
        columns, rows = self._widths[product.x], self._widths[product.out]
        heads = product.heads
        if heads == 1:
            return self._cast(product.x) + self.size(product.out)
        own = head_product_bytes(self._shape, heads, columns // heads, rows // heads)
        if not self._shape.native:  # the heads of a result are joined
            own = max(own, 2 * self._shape.size(rows))
        return own

    def _choosing(self, choose: ChooseKeys) -> int:
        """The choice of keys for the tokens of one sequence.

        score   keys in the cache's type (twice) and in float32, scores, and those of one head
                twice, whose queries are copied
        choose  the scores and a mask, the best ones with their positions, and these sorted
        """
        if not self._is_chosen(choose.choice):
            return 0
        one, key_dim = self._shape.of_one_sequence(), self._widths[choose.x] // choose.heads
        pairs, chosen = one.tokens * one.context_tokens, self._widths[choose.choice]
        keys = one.context_tokens * key_dim * (2 * one.key_bytes + 4)
        scoring = keys + 3 * 4 * pairs + 4 * one.tokens * key_dim
        choosing = (4 + 1) * pairs + (4 + 3 * 8) * one.tokens * chosen
        return max(scoring, keys + choosing)

    def _widened(self, width: int) -> int:
        """x (T, width) in float32, unless it is."""
        return 4 * self._shape.tokens * width if self._shape.activation.name != "F32" else 0

    def _routing(self, router: Router, width: int) -> int:
        """Three times the scores of all experts, or those, ranks and choice of `native/experts.h`.

        Torch may need x in float32, and its norm there.
        """
        routed = 3 * router.experts
        if self._shape.native:
            ranks = rank_floats(router.experts, router.n_group, router.topk_group)
            routed = max(routed, router.experts + ranks + choice_floats(router.top_k))
        normed = 3 * width if router.input_norm is not None else 0
        return self._widened(width) + 4 * self._shape.tokens * (routed + normed)

    def _mixture(self, moe: Moe, width: int) -> int:
        """Four lists of (token, expert) pairs, the sum, and an expert that gets all tokens."""
        pairs = 4 * 8 * self._shape.tokens * moe.router.top_k
        graph = Graph(width)
        transform(graph, moe.expert, STREAM, "ffn.experts.0")
        expert = torch_bytes(
            graph.operations, graph, self._shape, self._storage_of, self._module_bytes
        )
        return pairs + self._shape.size(width) + expert

    def _activation(self, value: int, up: int | None, activation: str) -> int:
        """Torch makes a new value of x, and of a bounded function five of x and `up`.

        Of softplus it makes two, and a mask.
        """
        x = self.size(value)
        if activation == "clamped_swiglu":
            return x if self._shape.native else 5 * x
        if self._shape.native and activation in ACTIVATIONS:
            return 0
        return 2 * x + self._shape.tokens * self._widths[value] if activation == "softplus" else x
