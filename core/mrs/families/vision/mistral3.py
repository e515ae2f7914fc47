"""Mistral Small 3.1 and later: Pixtral's tower (arXiv 2410.07073), images of any aspect ratio."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import floor
from typing import Any

from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.vision.image_layouts import (
    CLIP_IMAGES,
    read_resampling,
    read_scale,
    read_size,
)
from mrs.architecture.vision.towers.clip_tower import read_layers
from mrs.architecture.vision.towers.siglip_tower import GGUF_SIGLIP
from mrs.architecture.vision.vision_family import GgufProjector, VisionConfigs, VisionFamily
from mrs.architecture.vision_slots import patch_slot, vision_slots
from mrs.architecture.vision_spec import ImageShape, Patches, PixelScale, Tower, Vision
from mrs.config.activations import Activation
from mrs.config.config import Config
from mrs.config.layer_kinds import layer_count
from mrs.errors import Unsupported
from mrs.layers.attention.spec import Attention
from mrs.layers.layer import Layer
from mrs.layers.mlp.spec import Mlp
from mrs.layers.norm.spec import Norm
from mrs.layers.slots import Slot, norm_slots

TOWER = "vision_tower."
PROJECTOR = "multi_modal_projector."


def pixtral_names(tower: str, projector: str) -> Mapping[str, str]:
    """Slot -> module name, for a tower and a merging projector that begin so."""
    return {
        "patches": f"{tower}patch_conv",
        "pre_norm": f"{tower}ln_pre",
        "layer": f"{tower}transformer.layers.{{layer}}.",
        "mixer.norm": "attention_norm",
        "mixer.q": "attention.q_proj",
        "mixer.k": "attention.k_proj",
        "mixer.v": "attention.v_proj",
        "mixer.o": "attention.o_proj",
        "ffn.norm": "ffn_norm",
        "ffn.gate": "feed_forward.gate_proj",
        "ffn.up": "feed_forward.up_proj",
        "ffn.down": "feed_forward.down_proj",
        "projector.norm": f"{projector}norm",
        "projector.merge": f"{projector}patch_merger.merging_layer",
        "projector.up": f"{projector}linear_1",
        "projector.down": f"{projector}linear_2",
    }


#: Defaults of transformers.
TOWER_DEFAULTS = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_channels": 3,
    "patch_size": 16,
    "hidden_act": "gelu",
}
#: Epsilon of the tower's norms, which configs do not have.
TOWER_EPS = 1e-5
TOKEN, ROW_END, IMAGE_END = "[IMG]", "[IMG_BREAK]", "[IMG_END]"


@dataclass(frozen=True)
class PixtralTower(Tower):
    """A vision transformer with RMSNorm, gated MLPs and two-dimensional rope.

    Rotary pairs are (2i, 2i + 1) if they are `adjacent`, else (i, i + head size / 2).
    """

    hidden_size: int
    patches: Patches
    layers: tuple[Layer, ...]
    norm: Norm
    rope_base: float
    adjacent: bool = False


@dataclass(frozen=True)
class MergingProjector:
    """A norm, a linear map of each `merged` x `merged` patches to one, and a two-layer MLP.

    Patches, which are squares of `patch` pixels, are left out where they fill no square of them.
    """

    input_size: int
    patch: int
    merged: int
    norm: Norm
    activation: Activation
    bias: bool


@vision_slots.register
def _(tower: PixtralTower, hidden_size: int) -> Iterator[Slot]:
    yield patch_slot(tower.patches, tower.hidden_size)
    yield from norm_slots("pre_norm", tower.hidden_size, tower.norm)


@vision_slots.register
def _(projector: MergingProjector, hidden_size: int) -> Iterator[Slot]:
    size = projector.input_size
    yield from norm_slots("projector.norm", size, projector.norm)
    yield Slot("projector.merge", (size, size * projector.merged**2))
    yield Slot("projector.up", (hidden_size, size), bias=projector.bias)
    yield Slot("projector.down", (hidden_size, hidden_size), bias=projector.bias)


def read_tower(tower: Config, selected: tuple[int, ...]) -> PixtralTower:
    """The tower up to the only layer in `selected`; -1 is the last layer of the config."""
    count = layer_count(tower)
    if len(selected) != 1 or not -count <= selected[0] <= count:
        raise Unsupported(
            f"vision_feature_layer = {list(selected)} is not supported for {count} layers",
            where=tower.where,
        )
    hidden, heads = tower.positive("hidden_size"), tower.positive("num_attention_heads")
    head_dim = tower.head_dim(hidden, heads)
    norm = Norm(TOWER_EPS)
    layer = Layer(
        Attention(heads, heads, head_dim, head_dim**-0.5, None),
        Mlp(tower.positive("intermediate_size"), tower.activation("gelu")),
        norm,
    )
    rope = Config(tower.mapping("rope_parameters"), tower.where)
    base = tower.number("rope_theta", 1e4)
    return PixtralTower(
        hidden,
        Patches(tower.positive("patch_size"), tower.positive("num_channels")),
        (layer,) * (selected[0] + count + 1 if selected[0] < 0 else selected[0]),
        norm,
        rope.number("rope_theta", base),
    )


@dataclass(frozen=True)
class LongestEdgeLayout:
    """No edge is longer than `longest_edge`; edges are rounded up to multiples of `step` pixels.

    Every whole square of `merged` x `merged` patches, each of `patch` pixels along an edge, becomes
    one row of the language model's input, a `token`. An image has at least one. `row_end` is
    between rows of squares, and `image_end` after the last. A shape's `grid` is (rows, columns) of
    squares.
    """

    longest_edge: int
    step: int
    patch: int
    merged: int
    scale: PixelScale
    resampling: str
    token: str
    row_end: str
    image_end: str
    is_resizable: bool = True

    def shape(self, height: int, width: int) -> ImageShape:
        ratio = max(height, width) / self.longest_edge
        if ratio > 1:
            height, width = max(1, floor(height / ratio)), max(1, floor(width / ratio))
        square = self.patch * self.merged
        height, width = (max(-(-edge // self.step) * self.step, square) for edge in (height, width))
        rows, columns = height // square, width // square
        line = self.token * columns
        return ImageShape(
            pixels=(3, height, width),
            patches=(height // self.patch) * (width // self.patch),
            rows=rows * columns,
            text=self.row_end.join([line] * rows) + self.image_end,
            grid=(rows, columns),
        )

    def largest(self, edge: int) -> ImageShape:
        return self.shape(edge, edge)


def read_layout(
    images: Config,
    patch: int,
    merged: int,
    *,
    step: int = 0,
    token: str = TOKEN,
    row_end: str = ROW_END,
    image_end: str = IMAGE_END,
) -> LongestEdgeLayout:
    """The layout; without a `step` the edges are multiples of a square's."""
    sides = ("longest_edge",) if "longest_edge" in images.mapping("size") else ("height", "width")
    return LongestEdgeLayout(
        longest_edge=min(read_size(images, "size", *sides)),
        step=step or patch * merged,
        patch=patch,
        merged=merged,
        scale=read_scale(images),
        resampling=read_resampling(images),
        token=token,
        row_end=row_end,
        image_end=image_end,
    )


def read(configs: VisionConfigs, text: ModelSpec) -> Vision:
    model, images = configs.model, configs.images
    merged = model.positive("spatial_merge_size", 2)
    tower = read_tower(configs.tower, read_layers(model, default=-1))
    layout = read_layout(images, tower.patches.size, merged)
    assert text.norm is not None
    projector = MergingProjector(
        tower.hidden_size,
        tower.patches.size,
        merged,
        text.norm,
        model.activation("gelu", "projector_hidden_act"),
        model.flag("multimodal_projector_bias", False),
    )
    return Vision(
        tower,
        projector,
        layout,
        placeholder=TOKEN,
        image_token_id=model.integer("image_token_index", 10),
    )


def _gguf_configs(clip: Config) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    merged = {"spatial_merge_size": clip.positive("spatial_merge_size", 2)}
    return merged, {"size": {"longest_edge": clip.positive("image_size")}}


def _gguf_tower(clip: Config) -> Mapping[str, Any]:
    activation = "silu" if clip.flag("use_silu", False) else "gelu"
    return {"hidden_act": activation}


def _stored_in_gguf(tower: Any) -> Any:
    """The tower with the rows of q and k as the converter permutes them."""
    return replace(tower, adjacent=True)


#: The mmproj files, as llama.cpp's converter writes them.
GGUF = GgufProjector(
    "pixtral",
    {
        **GGUF_SIGLIP,
        "pre_norm": "v.pre_ln",
        "ffn.gate": "ffn_gate",
        "projector.norm": "mm.input_norm",
        "projector.merge": "mm.patch_merger",
        "projector.up": "mm.1",
        "projector.down": "mm.2",
    },
    TOKEN,
    _gguf_configs,
    _gguf_tower,
    _stored_in_gguf,
    texts=("llama", "ministral3", "mistral4"),
    # An embedding of the language model, for programs that encode images apart from it.
    unread=("v.token_embd.img_break",),
)


FAMILY = VisionFamily(
    "mistral3",
    read,
    names=pixtral_names(TOWER, PROJECTOR),
    text="mistral",
    tower_defaults=TOWER_DEFAULTS,
    image_defaults={**CLIP_IMAGES, "size": {"longest_edge": 1024}},
    unread=(f"{TOWER}transformer.layers.", f"{TOWER}patch_positional_embedding."),
    gguf=GGUF,
)
