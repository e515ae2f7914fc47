"""What seeing takes: a tower and a projector beside embedding and head, and pictures in prompts.

Letters as in `mrs.plan.memory.forward_pass`; T are the patches that go through the tower together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import singledispatch
from math import prod

from mrs.architecture.binding import Parameter
from mrs.architecture.layers import Layer
from mrs.architecture.mixers.attention_spec import Attention
from mrs.architecture.mixers.mlp_spec import Mlp
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.vision.towers.clip_tower import ClipTower
from mrs.architecture.vision.towers.siglip_tower import SiglipTower
from mrs.architecture.vision_spec import ImageShape, Tower, Vision
from mrs.plan.memory.attention_activations import ATTENTION_KEYS_PER_STEP
from mrs.plan.memory.forward_pass import ForwardShape, norm_bytes, product_bytes
from mrs.request import VisionRequest
from mrs.storage import Storage

#: Queries that torch's attention on a CPU works on together at most, a thread.
ATTENTION_QUERIES = 256


@dataclass(frozen=True)
class Pictures:
    """The pictures that a plan counts with: `count` in a sequence, the largest of `edge` pixels."""

    count: int
    edge: int
    largest: ImageShape

    @property
    def keys(self) -> int:
        """Keys of all of them together, where layers of their own look at them."""
        return self.count * self.largest.keys


@dataclass(frozen=True)
class VisionSizes:
    """What sees, on the device of embedding and head.

    `activation_bytes` are at their height while a picture is looked at, `feature_bytes` stay
    until the prompt is read. `image_rows` of the context are taken by each picture, at most, and
    `image_keys` are looked at by layers of their own.
    """

    images: int
    image_edge: int
    image_rows: int
    image_keys: int
    weight_bytes: int
    activation_bytes: int
    feature_bytes: int


def pictures(spec: ModelSpec, request: VisionRequest | None) -> Pictures | None:
    """What is planned for; None where nothing sees."""
    if spec.vision is None or request is None:
        return None
    edge = min(request.max_image_length, request.max_edge or request.max_image_length)
    return Pictures(request.max_num_images, edge, spec.vision.layout.largest(edge))


def vision_sizes(
    spec: ModelSpec,
    parameters: Sequence[Parameter],
    storage: Mapping[str, Storage],
    shown: Pictures,
    run: ForwardShape,
    batch: int,
) -> VisionSizes:
    """The terms of a model that sees, as one device would hold it; `run` is a pass on it."""
    assert spec.vision is not None
    shape = shown.largest
    features = (shape.keys or shape.rows) * spec.hidden_size * run.activation.block_bytes
    return VisionSizes(
        images=shown.count,
        image_edge=shown.edge,
        image_rows=shape.rows,
        image_keys=shape.keys,
        weight_bytes=sum(
            storage[p.name].size_bytes for p in parameters if p.name.startswith("vision.")
        ),
        activation_bytes=_vision_activation_bytes(
            spec.vision, spec.hidden_size, shape, storage, run
        ),
        feature_bytes=batch * shown.count * features,
    )


def _vision_activation_bytes(
    vision: Vision,
    hidden_size: int,
    shape: ImageShape,
    storage: Mapping[str, Storage],
    run: ForwardShape,
) -> int:
    """The most that is alive while one picture of this shape is looked at.

    Its pixels and their cast are held all the time, what the tower saw twice while it is put
    together. Beside them one layer runs; or the projector does, on every row of what was seen.
    """
    number = run.activation.block_bytes
    tower = vision.tower
    pixels = prod(shape.pixels) * (4 + number)
    width = tower.output_size
    seen = shape.patches * width * number
    at_once = rows_at_once(tower, shape)
    one = replace(run, tokens=at_once, sequence_tokens=at_once, context_tokens=at_once)
    layers = [
        _layer_bytes(stack[0], tower.hidden_size, one, storage, f"vision.{key}.0.")
        for key, stack in tower.stacks.items()
        if stack
    ]
    patches = one.size(prod(shape.pixels) // max(shape.patches, 1) + 3 * tower.hidden_size)
    kept = one.size(width)
    projecting = 2 * seen + 4 * shape.patches * max(hidden_size, width) * number
    return pixels + max(2 * seen + kept + max([patches, *layers]), projecting)


@singledispatch
def rows_at_once(tower: Tower, shape: ImageShape) -> int:
    """Patches that go through a tower's layers together; a case a kind that cuts them up."""
    return shape.patches


@rows_at_once.register
def _(tower: ClipTower, shape: ImageShape) -> int:
    return shape.patches // shape.pixels[0]


@rows_at_once.register
def _(tower: SiglipTower, shape: ImageShape) -> int:
    return shape.patches // shape.pixels[0]


def _layer_bytes(
    layer: Layer, hidden_size: int, run: ForwardShape, storage: Mapping[str, Storage], prefix: str
) -> int:
    """x, its norm, queries, keys and values, the heads' results twice and the product of them; or
    the new x, its norm, three times what the feed-forward part works on, and its result.

    Turned queries and keys are there beside those that they were made of. Torch's attention takes
    a tile of scores for every thread.
    """

    def product(slot: str, columns: int, rows: int, bias: bool) -> int:
        return product_bytes(run, columns, rows, storage[f"{prefix}{slot}.weight"], bias=bias)

    assert isinstance(layer.mixer, Attention)
    assert isinstance(layer.feed_forward, Mlp)
    mixer, mlp = layer.mixer, layer.feed_forward
    heads = run.size(mixer.heads * mixer.head_dim)
    x, wide = run.size(hidden_size), run.size(mlp.intermediate)
    tile = ATTENTION_QUERIES * (ATTENTION_KEYS_PER_STEP + mixer.head_dim + 2)
    scores = max(run.threads, 1) * 4 * min(tile, run.tokens * (run.tokens + mixer.head_dim + 2))
    back = product("mixer.o", mixer.heads * mixer.head_dim, hidden_size, mixer.out_bias)
    mixing = 2 * x + 7 * heads + max(scores, back)
    up = product("ffn.up", hidden_size, mlp.intermediate, mlp.bias)
    down = product("ffn.down", mlp.intermediate, hidden_size, mlp.bias)
    transforming = 2 * x + max(wide + up, 4 * wide, wide + down)
    return max(mixing, transforming, x + norm_bytes(run, hidden_size))
