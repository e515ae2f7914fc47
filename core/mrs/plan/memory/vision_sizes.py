"""Memory of a vision tower, its projector and the images in prompts.

Letters as in `mrs.layers.forward_pass`; T is the number of patches in one pass of the tower.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Literal

from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.vision_spec import (
    SAMPLES_PER_S,
    CountedProjector,
    ImageShape,
    Projector,
    TimedTranscripts,
    Vision,
)
from mrs.layers.attention.memory import ATTENTION_KEYS_PER_STEP
from mrs.layers.attention.spec import Attention
from mrs.layers.forward_pass import ForwardShape, norm_bytes, product_bytes
from mrs.layers.grid_convolution.spec import GridConvolution
from mrs.layers.layer import Layer
from mrs.layers.mlp.spec import Mlp
from mrs.process.request_memory import LONGEST_RECORDING_S
from mrs.quantization.storage import Storage
from mrs.request import VisionRequest
from mrs.weights.binding import Parameter

#: Most queries that torch's attention on a CPU processes at once in each thread.
ATTENTION_QUERIES = 256


@dataclass(frozen=True)
class PlannedImages:
    """Images that a plan allows for: `count` in a sequence, with edges of up to `edge` pixels.

    Of the kind `audio` these are files of up to `edge` seconds. If they are windows of a recording,
    the longest has `recorded` values.
    """

    count: int
    edge: int
    largest: ImageShape
    kind: Literal["image", "audio"] = "image"
    recorded: int = 0

    @property
    def keys(self) -> int:
        """Keys of all images for cross-attention layers; 0 if the model has none."""
        return self.count * self.largest.keys


@dataclass(frozen=True)
class VisionSizes:
    """Memory of vision on the device of embedding and head.

    `activation_bytes` is the peak while one image is encoded; `feature_bytes` stay until the prompt
    is computed. Each image needs at most `image_rows` tokens of the context and `image_keys` keys
    in cross-attention layers. Of the kind `audio`, `image_edge` is the length in seconds.
    """

    kind: Literal["image", "audio"]
    images: int
    image_edge: int
    image_rows: int
    image_keys: int
    weight_bytes: int
    activation_bytes: int
    feature_bytes: int

    @property
    def what(self) -> str:
        """How many, and how large, in words."""
        if self.kind == "audio":
            files = "1 audio file" if self.images == 1 else f"{self.images} audio files"
            return f"{files} of up to {self.image_edge} seconds"
        images = "1 image" if self.images == 1 else f"{self.images} images"
        return f"{images} of up to {self.image_edge} pixels"


def planned_images(spec: ModelSpec, request: VisionRequest | None) -> PlannedImages | None:
    """The images that the request allows; None if the model has no vision support."""
    if spec.vision is None or request is None:
        return None
    if spec.vision.audio_layout is not None:
        layout, seconds = spec.vision.audio_layout, request.max_audio_seconds
        if isinstance(spec.vision.transcripts, TimedTranscripts):
            window = layout.chunk * layout.mel.hop // SAMPLES_PER_S
            longest = LONGEST_RECORDING_S * layout.frames_per_s
            return PlannedImages(
                1, window, layout.largest(window), "audio", recorded=longest * layout.mel.bands
            )
        return PlannedImages(request.max_num_images, seconds, layout.largest(seconds), "audio")
    edge = min(request.max_image_length, request.max_edge or request.max_image_length)
    return PlannedImages(request.max_num_images, edge, spec.vision.layout.largest(edge))


def vision_sizes(
    spec: ModelSpec,
    parameters: Sequence[Parameter],
    storage: Mapping[str, Storage],
    images: PlannedImages,
    shape: ForwardShape,
    batch: int,
) -> VisionSizes:
    """Vision sizes of a model on one device; `shape` is a forward pass on that device."""
    assert spec.vision is not None
    image = images.largest
    width = (1 + spec.vision.deep_layers) * spec.hidden_size
    features = (image.keys or image.rows) * width * shape.activation.block_bytes
    return VisionSizes(
        kind=images.kind,
        images=images.count,
        image_edge=images.edge,
        image_rows=image.rows,
        image_keys=image.keys,
        weight_bytes=sum(
            storage[p.name].size_bytes for p in parameters if p.name.startswith("vision.")
        ),
        activation_bytes=_vision_activation_bytes(
            spec.vision, spec.hidden_size, image, storage, shape
        ),
        feature_bytes=batch * images.count * features,
    )


def _vision_activation_bytes(
    vision: Vision,
    hidden_size: int,
    image: ImageShape,
    storage: Mapping[str, Storage],
    shape: ForwardShape,
) -> int:
    """Peak bytes while one image of this shape is encoded.

    throughout  pixels in float32 and their cast (of each frame, if the model takes videos),
                features of the tower twice
    tower       hidden states, and the larger of: patch embedding, one layer; the product of the
                embedding counts only if there are no layers, which need more
    project     what `projector_values` says
    """
    value_bytes = shape.activation.block_bytes
    tower = vision.tower
    frames = 1 if vision.video is None else vision.video.frames
    pixels = frames * prod(image.pixels) * (4 + value_bytes)
    width = tower.output_size
    features = image.patches * width * value_bytes
    at_once = tower.rows_at_once(image)
    one = replace(shape, tokens=at_once, sequence_tokens=at_once, context_tokens=at_once)
    layers = [
        _layer_bytes(layer, tower.hidden_size, one, storage, f"vision.{key}.{stack.index(layer)}.")
        for key, stack in tower.stacks.items()
        for layer in set(stack)
    ]
    patches = value_bytes * tower.embedding_values(image)
    patches += 4 * tower.interpolated_values
    if not layers:
        weight = storage["vision.patches.weight"]
        inside = prod(image.pixels) // image.patches
        # A weight of fewer bits: pixels are cast, torch packs it, and adds up in float32.
        patches += product_bytes(one, inside, tower.hidden_size, weight)
        patches += weight.size_bytes + 4 * one.tokens * tower.hidden_size
    hidden = one.size(width)
    projecting = 2 * features + value_bytes * projector_values(
        vision.projector, image, width, hidden_size
    )
    return pixels + max(2 * features + hidden + max([patches, *layers]), projecting)


def projector_values(projector: Projector, image: ImageShape, width: int, hidden_size: int) -> int:
    """Most values at once of a projector from features of `width` to `hidden_size`.

    Four tensors of all patches, as wide as the wider of both, unless it says something else.
    """
    if isinstance(projector, CountedProjector):
        return projector.most_values(image, width, hidden_size)
    return 4 * image.patches * max(width, hidden_size)


def _layer_bytes(
    layer: Layer, hidden_size: int, shape: ForwardShape, storage: Mapping[str, Storage], prefix: str
) -> int:
    """Peak bytes of one layer of the tower. X is the size of x, I that of the MLP's inside.

    mixer  2 X (x, norm), 7 tensors of all heads (q, k, v, rotated q and k, result twice), and
           the larger of: a tile of scores per thread; o_proj. Of a convolution: 6 tensors of all
           channels (3 projected, products and result), and the larger of the projections
    MLP    2 X (x, norm), and the largest of: I and up_proj; 4 I; I and down_proj
    norm   X and the norm
    """

    def product(slot: str, columns: int, rows: int, bias: bool) -> int:
        return product_bytes(shape, columns, rows, storage[f"{prefix}{slot}.weight"], bias=bias)

    def attention(mixer: Attention) -> int:
        heads = shape.size(mixer.heads * mixer.head_dim)
        tile = ATTENTION_QUERIES * (ATTENTION_KEYS_PER_STEP + mixer.head_dim + 2)
        seen = shape.tokens * (shape.tokens + mixer.head_dim + 2)
        scores = max(shape.threads, 1) * 4 * min(tile, seen)
        projection = product("mixer.o", mixer.heads * mixer.head_dim, hidden_size, mixer.out_bias)
        return 7 * heads + max(scores, projection)

    def convolution(mixer: GridConvolution) -> int:
        channels = mixer.channels
        into = product("mixer.in", hidden_size, 3 * channels, bias=False)
        out = product("mixer.out", channels, hidden_size, bias=False)
        return shape.size(6 * channels) + max(into, out)

    assert isinstance(layer.mixer, (Attention, GridConvolution))
    assert isinstance(layer.feed_forward, Mlp)
    mixer, mlp = layer.mixer, layer.feed_forward
    x, inside = shape.size(hidden_size), shape.size(mlp.intermediate)
    mixer_bytes = 2 * x + (
        convolution(mixer) if isinstance(mixer, GridConvolution) else attention(mixer)
    )
    up = product("ffn.up", hidden_size, mlp.intermediate, mlp.bias)
    down = product("ffn.down", mlp.intermediate, hidden_size, mlp.bias)
    mlp_bytes = 2 * x + max(inside + up, 4 * inside, inside + down)
    return max(mixer_bytes, mlp_bytes, x + norm_bytes(shape, hidden_size))
