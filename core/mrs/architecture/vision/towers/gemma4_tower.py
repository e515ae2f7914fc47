"""The vision tower of Gemma 4: norms around every module, and linear maps with bounded values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mrs.architecture.config import Config
from mrs.architecture.layers import Layer
from mrs.architecture.mixers.attention_spec import Attention
from mrs.architecture.mixers.mlp_spec import Mlp
from mrs.architecture.norm_rope import Norm
from mrs.architecture.readers.layer_kinds_reader import layer_count
from mrs.architecture.readers.layer_reader import read_norm
from mrs.architecture.slots import Slot
from mrs.architecture.vision.two_axes import require_two_axes
from mrs.architecture.vision_slots import flat_patch_slot, vision_slots
from mrs.architecture.vision_spec import Tower
from mrs.errors import Unsupported

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
GEMMA4_TOWER_DEFAULTS = {
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


@dataclass(frozen=True)
class Gemma4Tower(Tower):
    """A vision transformer for images of any size, with two-dimensional rope.

    The first half of each head rotates by a patch's column, the second half by its row. A column
    and a row have a learned embedding each, of which there are `positions`. With `is_bounded` the
    inputs and outputs of a layer's linear maps are clamped to ranges of their own. The pixels of a
    patch are ordered by row, or by channel in the map of mmproj files.
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


def read_gemma4_tower(tower: Config) -> Gemma4Tower:
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
