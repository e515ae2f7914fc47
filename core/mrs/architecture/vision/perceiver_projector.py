"""The perceiver of Idefics 2, which makes a few rows of any number of patches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from mrs.architecture.config import Config
from mrs.architecture.mixers.attention_spec import Attention
from mrs.architecture.mixers.mlp_spec import Mlp, mlp_slots
from mrs.architecture.norm_rope import Norm
from mrs.architecture.readers.layer_reader import read_norm
from mrs.architecture.slots import Slot, norm_slots
from mrs.architecture.vision_slots import vision_slots
from mrs.errors import NotReadable

#: Bound on the layers of a perceiver, and on its rows.
MOST_LAYERS, MOST_ROWS = 16, 2**12
#: Defaults of transformers.
PERCEIVER_DEFAULTS = {
    "hidden_size": 4096,
    "rms_norm_eps": 1e-6,
    "resampler_n_latents": 64,
    "resampler_depth": 3,
    "resampler_n_heads": 16,
    "resampler_head_dim": 96,
    "num_key_value_heads": 4,
}
_NAMES = {
    "norm": "input_latents_norm",
    "context_norm": "input_context_norm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "ffn.norm": "post_attention_layernorm",
    "ffn.gate": "mlp.gate_proj",
    "ffn.up": "mlp.up_proj",
    "ffn.down": "mlp.down_proj",
}


@dataclass(frozen=True)
class PerceiverProjector:
    """An MLP maps patches to the hidden size; then `rows` learned vectors attend to them.

    Each of `layers` layers is x + attention(norm(x), [norm(patches), norm(x)]) for the vectors x,
    then x + mlp(norm(x)); a norm follows. Each of an image's `views` has its own rows.
    """

    input_size: int
    widen: Mlp
    rows: int
    layers: int
    attention: Attention
    mlp: Mlp
    norm: Norm


@vision_slots.register
def _(projector: PerceiverProjector, hidden_size: int) -> Iterator[Slot]:
    for slot in mlp_slots("projector", projector.widen, projector.input_size):
        if slot.name == "projector.down":
            slot = replace(slot, shape=(hidden_size, projector.widen.intermediate))
        yield slot
    yield Slot("latents", (projector.rows, hidden_size), "dense", suffix="")
    attention = [
        replace(slot, name=slot.name.removeprefix("mixer."))
        for slot in projector.attention.slots(hidden_size)
    ]
    for index in range(projector.layers):
        prefix = f"perceiver.{index}"
        for slot in attention:
            yield replace(slot, name=f"{prefix}.{slot.name}")
        for name in ("norm", "context_norm", "ffn.norm"):
            yield from norm_slots(f"{prefix}.{name}", hidden_size, projector.norm)
        yield from mlp_slots(f"{prefix}.ffn", projector.mlp, hidden_size)
    yield from norm_slots("perceiver.norm", hidden_size, projector.norm)


def connector_names(prefix: str) -> dict[str, str]:
    """Slot -> module name, for names that start with `prefix`."""
    perceiver = f"{prefix}perceiver_resampler."
    names = {"latents": f"{perceiver}latents", "perceiver.norm": f"{perceiver}norm"}
    for part in ("gate", "up", "down"):
        names[f"projector.{part}"] = f"{prefix}modality_projection.{part}_proj"
    for index in range(MOST_LAYERS):
        names |= {
            f"perceiver.{index}.{slot}": f"{perceiver}layers.{index}.{name}"
            for slot, name in _NAMES.items()
        }
    return names


def read_perceiver(
    config: Config, input_size: int, widen: Mlp, hidden_size: int, text_norm: Norm
) -> PerceiverProjector:
    """`config` is that of the perceiver, which counts only if its hidden size is the text's."""
    heads, kv_heads = config.positive("resampler_n_heads"), config.positive("num_key_value_heads")
    rows, layers = config.positive("resampler_n_latents"), config.positive("resampler_depth")
    if heads % kv_heads or rows > MOST_ROWS or layers > MOST_LAYERS:
        raise NotReadable(
            f"{rows} rows, {layers} layers, and {heads} heads with {kv_heads} of keys do not fit "
            "together, or are out of range",
            where=config.where,
        )
    head_dim = config.positive("resampler_head_dim")
    is_own = config.positive("hidden_size") == hidden_size
    return PerceiverProjector(
        input_size,
        widen,
        rows,
        layers,
        Attention(heads, kv_heads, head_dim, head_dim**-0.5, None),
        Mlp(4 * hidden_size, config.activation()),
        read_norm(config) if is_own else text_norm,
    )
