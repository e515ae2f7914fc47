"""Gemma 4: images of any aspect ratio and nearly one area, whose patches are averaged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import floor, sqrt
from typing import Any

from mrs.architecture.family import Names
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.vision.image_layouts import (
    MOST_ROWS,
    SquareGridLayout,
    read_resampling,
    squarest_grid,
)
from mrs.architecture.vision.towers.siglip_tower import GGUF_SIGLIP
from mrs.architecture.vision.two_axes import require_two_axes
from mrs.architecture.vision.vision_family import (
    GgufProjector,
    ReadVision,
    VisionConfigs,
    VisionFamily,
)
from mrs.architecture.vision_slots import flat_patch_slot, vision_slots
from mrs.architecture.vision_spec import ImageShape, PixelScale, Tower, Vision
from mrs.config.config import Config
from mrs.config.layer_kinds import layer_count
from mrs.errors import NotReadable, Unsupported
from mrs.layers.attention.spec import Attention
from mrs.layers.layer import Layer
from mrs.layers.mlp.spec import Mlp
from mrs.layers.norm.config import read_norm
from mrs.layers.norm.spec import Norm
from mrs.layers.slots import Slot

#: Slot in a layer -> module name there.
LINEARS = {
    "mixer.q": "self_attn.q_proj",
    "mixer.k": "self_attn.k_proj",
    "mixer.v": "self_attn.v_proj",
    "mixer.o": "self_attn.o_proj",
    "ffn.gate": "mlp.gate_proj",
    "ffn.up": "mlp.up_proj",
    "ffn.down": "mlp.down_proj",
}
BOUNDS = ("input_min", "input_max", "output_min", "output_max")
#: Defaults of transformers.
TOWER_DEFAULTS = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 16,
    "num_attention_heads": 12,
    "num_key_value_heads": 12,
    "head_dim": 64,
    "pooling_kernel_size": 3,
    "patch_size": 16,
    "position_embedding_size": 10_240,
}
BEGIN, TOKEN, END = "<|image>", "<|image|>", "<image|>"
#: Prefixes of the tensors for sounds.
GGUF_IGNORED = ("a.", "mm.a.")
_GGUF_LAYER = {
    **{slot: name for slot, name in GGUF_SIGLIP.items() if slot.startswith(("mixer", "ffn"))},
    "ffn.gate": "ffn_gate",
}
TOWER = "model.vision_tower."


@dataclass(frozen=True)
class Gemma4Tower(Tower):
    """A vision transformer for images of any size, with two-dimensional rope.

    The first half of each head rotates by a patch's column, the second half by its row. Columns
    and rows have learned embeddings, `positions` of each. With `is_bounded` the inputs and outputs
    of a layer's linear maps are clamped to ranges of their own. The pixels of a patch are ordered
    by row, or by channel in the map of mmproj files.
    """

    hidden_size: int
    patch_size: int
    layers: tuple[Layer, ...]
    rope_base: float
    positions: int
    is_bounded: bool = False
    channels_first: bool = False


@vision_slots.register
def _(tower: Gemma4Tower, hidden_size: int) -> Iterator[Slot]:
    first = tower.channels_first
    yield flat_patch_slot(tower.patch_size, tower.hidden_size, channels_first=first)
    yield Slot("positions", (2, tower.positions, tower.hidden_size), "dense", suffix="")
    if tower.is_bounded:
        for slot in LINEARS:
            for bound in BOUNDS:  # one for each layer
                name, layers = f"bounds.{slot}.{bound}.{{expert}}", len(tower.layers)
                yield Slot(name, (1,), "vector", suffix="", experts=layers)


def read_tower(tower: Config) -> Gemma4Tower:
    heads, head_dim = tower.positive("num_attention_heads"), tower.positive("head_dim")
    if tower.positive("num_key_value_heads") != heads:
        raise Unsupported("shared key heads in the tower are not supported", where=tower.where)
    require_two_axes(head_dim, tower.where)
    norm = read_norm(tower)
    activation = tower.activation("gelu_pytorch_tanh", "hidden_activation")
    layer = Layer(
        Attention(heads, heads, head_dim, 1.0, None, qk_norm=norm, value_norm=norm),
        Mlp(tower.positive("intermediate_size"), activation),
        norm,
        style="sandwich",
    )
    rope = Config(tower.mapping("rope_parameters"), tower.where)
    return Gemma4Tower(
        tower.positive("hidden_size"),
        tower.positive("patch_size"),
        (layer,) * layer_count(tower),
        rope.positive_number("rope_theta", 100.0, above=1),
        tower.positive("position_embedding_size"),
        tower.flag("use_clipped_linears", False),
    )


def gemma4_names(prefix: str) -> dict[str, str]:
    """Slot -> module name of a tower whose names start with `prefix`."""
    layer = f"{prefix}encoder.layers."
    return {
        "patches": f"{prefix}patch_embedder.input_proj",
        "positions": f"{prefix}patch_embedder.position_embedding_table",
        "layer": f"{layer}{{layer}}.",
        "mixer.norm": "input_layernorm",
        "mixer.q_norm": "self_attn.q_norm",
        "mixer.k_norm": "self_attn.k_norm",
        "mixer.post_norm": "post_attention_layernorm",
        "ffn.norm": "pre_feedforward_layernorm",
        "ffn.post_norm": "post_feedforward_layernorm",
        **{slot: f"{name}.linear" for slot, name in LINEARS.items()},
        **{
            f"bounds.{slot}.{bound}.{{expert}}": f"{layer}{{expert}}.{name}.{bound}"
            for slot, name in LINEARS.items()
            for bound in BOUNDS
        },
    }


@dataclass(frozen=True)
class ScaledPoolProjector:
    """projection(norm(y)), y = factor * mean of `pool` x `pool` patches.

    With `is_standardized`, y is (that - bias) * scale with learned vectors. The norm has no weight.
    """

    input_size: int
    norm: Norm
    pool: int = 1
    factor: float = 1.0
    is_standardized: bool = False


@vision_slots.register
def _(projector: ScaledPoolProjector, hidden_size: int) -> Iterator[Slot]:
    if projector.is_standardized:
        for name in ("bias", "scale"):
            yield Slot(f"standard.{name}", (projector.input_size,), "vector", suffix="")
    yield Slot("projector", (hidden_size, projector.input_size))


@dataclass(frozen=True)
class AreaLayout(SquareGridLayout):
    """Images are scaled to the largest area that has at most `most_rows` squares."""

    marks = BEGIN, TOKEN, END
    is_resizable: bool = False

    def shape(self, height: int, width: int) -> ImageShape:
        pixels = self.most_rows * self.square**2
        factor = sqrt(pixels / (height * width))
        rows = floor(factor * height / self.square)
        columns = floor(factor * width / self.square)
        if rows == 0:
            rows, columns = 1, min(width // height, self.most_rows)
        elif columns == 0:
            rows, columns = min(height // width, self.most_rows), 1
        return self.of_grid(rows, columns)

    def largest(self, edge: int) -> ImageShape:
        return self.of_grid(*squarest_grid(self.most_rows))


def read_area(
    configs: VisionConfigs, mean: tuple[float, ...], std: tuple[float, ...]
) -> AreaLayout:
    """The layout for a tower whose input is (pixels - mean) / std."""
    images, tower = configs.images, configs.tower
    patch_size, pool = tower.positive("patch_size"), tower.positive("pooling_kernel_size")
    images.allow_only("do_resize", True)
    images.allow_only("do_rescale", True)
    images.allow_only("patch_size", patch_size)
    images.allow_only("pooling_kernel_size", pool)
    most = images.positive("max_soft_tokens")
    if most > MOST_ROWS:
        raise NotReadable(f"max_soft_tokens = {most} is out of range", where=images.where)
    scale = PixelScale(mean, std, images.number("rescale_factor", 1 / 255))
    return AreaLayout(patch_size * pool, pool, most, scale, read_resampling(images))


def read_normalization(images: Config) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """(mean, std) of the image processor."""
    if not images.flag("do_normalize", False):
        return (0.0,) * 3, (1.0,) * 3
    return images.numbers("image_mean", 3), images.numbers("image_std", 3, above=0)


def require_positions(needed: int, positions: int, where: str) -> None:
    """Raises NotReadable if the longest image has more patches along an edge than positions."""
    if needed > positions:
        raise NotReadable(
            f"the tower has {positions} positions, but images need {needed}", where=where
        )


def gemma4_vision(
    configs: VisionConfigs,
    tower: Tower,
    projector: ScaledPoolProjector,
    layout: AreaLayout,
    attention: str | None,
) -> Vision:
    """`attention` is the default of `use_bidirectional_attention`."""
    text = configs.model.mapping("text_config")
    return Vision(
        tower,
        projector,
        layout,
        placeholder=TOKEN,
        image_token_id=configs.model.integer("image_token_id", 258_880),
        is_bidirectional=text.get("use_bidirectional_attention", attention) == "vision",
    )


def gemma4_family(name: str, read: ReadVision, names: Names, **fields: Any) -> VisionFamily:
    return VisionFamily(
        name,
        read,
        names={**names, "projector": "model.embed_vision.embedding_projection"},
        text_start="model.language_model.",
        head="lm_head",
        image_defaults={"max_soft_tokens": 280, "resample": 3},
        ignored=("model.audio_tower.", "model.embed_audio."),
        **fields,
    )


def read(configs: VisionConfigs, text: ModelSpec) -> Vision:
    config = configs.tower
    tower = read_tower(config)
    mean, std = read_normalization(configs.images)
    # The tower's input is 2 x - 1, where x is what the image processor makes of pixels.
    middle = tuple(m + s / 2 for m, s in zip(mean, std, strict=True))
    layout = read_area(configs, middle, tuple(s / 2 for s in std))
    require_positions(layout.most_rows * layout.pool, tower.positions, config.where)
    projector = ScaledPoolProjector(
        tower.hidden_size,
        read_norm(config),
        layout.pool,
        tower.hidden_size**0.5,
        config.flag("standardize", False),
    )
    return gemma4_vision(configs, tower, projector, layout, attention=None)


def gguf_configs(clip: Config) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Files do not say how images are attended to: those of sizes with layer inputs in order."""
    attention = None if clip.flag("has_layer_inputs") else "vision"
    return {"text_config": {"use_bidirectional_attention": attention}}, {"do_normalize": True}


def gguf_pooling(clip: Config) -> dict[str, Any]:
    return {
        "pooling_kernel_size": clip.positive("projector.scale_factor", 3),
        "rms_norm_eps": clip.number("attention.layer_norm_epsilon", 1e-6),
    }


def _gguf_tower(clip: Config) -> Mapping[str, Any]:
    heads = clip.positive("attention.head_count")
    return {
        **gguf_pooling(clip),
        "num_key_value_heads": heads,
        "head_dim": clip.head_dim(clip.positive("query_rows"), heads),
        "position_embedding_size": clip.positive("position_rows"),
        "use_clipped_linears": clip.flag("has_bounds"),
        "standardize": clip.flag("has_standard"),
    }


def stored_in_gguf(tower: Any) -> Any:
    """The tower with patches as convolutions have them."""
    return replace(tower, channels_first=True)


#: The mmproj files, as llama.cpp's converter writes them.
GGUF = GgufProjector(
    "gemma4v",
    {
        **GGUF_SIGLIP,
        **_GGUF_LAYER,
        "positions": "v.position_embd.weight",
        "mixer.q_norm": "attn_q_norm",
        "mixer.k_norm": "attn_k_norm",
        "mixer.post_norm": "attn_post_norm",
        "ffn.post_norm": "ffn_post_norm",
        **{
            f"bounds.{slot}.{bound}.{{expert}}": f"v.blk.{{expert}}.{_GGUF_LAYER[slot]}.{bound}"
            for slot in LINEARS
            for bound in BOUNDS
        },
        "standard.bias": "v.std_bias",
        "standard.scale": "v.std_scale",
        "projector": "mm.input_projection",
    },
    TOKEN,
    gguf_configs,
    _gguf_tower,
    stored_in_gguf,
    ignored=GGUF_IGNORED,
)


FAMILY = gemma4_family(
    "gemma4",
    read,
    {
        **gemma4_names(TOWER),
        "standard.bias": f"{TOWER}std_bias",
        "standard.scale": f"{TOWER}std_scale",
    },
    text="gemma4_text",
    tower_defaults=TOWER_DEFAULTS,
    gguf=GGUF,
)
