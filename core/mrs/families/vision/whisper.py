"""Whisper (arXiv 2212.04356): hears 30 seconds at a time, to which its decoder attends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mrs.architecture.decoder_config import decoder
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.vision.vision_family import VisionConfigs, VisionFamily
from mrs.architecture.vision_slots import vision_slots
from mrs.architecture.vision_spec import (
    SAMPLES_PER_S,
    AudioLayout,
    ImageShape,
    LogMel,
    TimedTranscripts,
    Tower,
    Vision,
)
from mrs.config.config import Config
from mrs.config.layer_kinds import layer_count
from mrs.errors import NotReadable
from mrs.layers.attention.spec import Attention
from mrs.layers.cross_attention.spec import CrossAttention
from mrs.layers.empty.spec import NoFeedForward
from mrs.layers.first_input.spec import FirstInput
from mrs.layers.layer import Layer
from mrs.layers.mlp.spec import Mlp
from mrs.layers.norm.spec import Norm
from mrs.layers.slots import Slot, norm_slots

#: The token that the model replies to. It stands for what is heard.
TOKEN = "<|startoftranscript|>"
_TOWER = "model.encoder."
#: The norms of both halves of the model.
NORM = Norm(1e-5, "layer", bias=True)
#: Names that both halves of the model have in a layer.
LAYER_NAMES: Mapping[str, str] = {
    "mixer.norm": "self_attn_layer_norm",
    "mixer.q": "self_attn.q_proj",
    "mixer.k": "self_attn.k_proj",
    "mixer.v": "self_attn.v_proj",
    "mixer.o": "self_attn.out_proj",
    "ffn.norm": "final_layer_norm",
    "ffn.up": "fc1",
    "ffn.down": "fc2",
}
#: Slot -> module name.
NAMES = {
    **LAYER_NAMES,
    "layer": f"{_TOWER}layers.{{layer}}.",
    "convolution.0": f"{_TOWER}conv1",
    "convolution.1": f"{_TOWER}conv2",
    "positions": f"{_TOWER}embed_positions",
    "post_norm": f"{_TOWER}layer_norm",
}
#: Defaults of transformers.
TOWER_DEFAULTS = {
    "num_mel_bins": 80,
    "encoder_layers": 4,
    "encoder_attention_heads": 6,
    "encoder_ffn_dim": 1536,
    "d_model": 384,
    "max_source_positions": 1500,
}
#: The second convolution halves the frames.
FRAMES_PER_ROW = 2
#: Values that a convolution over three frames reads for each value of its input.
TAPS = 3


@dataclass(frozen=True)
class WindowLayout(AudioLayout):
    """A window of `chunk` frames, filled up with silence: one token, whose rows are keys."""

    def shape(self, samples: int) -> ImageShape:
        keys = self.rows_of(self.chunk)
        pixels = (self.mel.bands, self.chunk)
        return ImageShape(pixels, keys, 1, self.token, keys=keys)


@dataclass(frozen=True)
class WindowTower(Tower):
    """Two convolutions over frames, learned positions, and a transformer of the whole window."""

    hidden_size: int
    layout: WindowLayout
    layers: tuple[Layer, ...]
    norm: Norm

    @property
    def rows(self) -> int:
        return self.layout.rows_of(self.layout.chunk)

    def embedding_values(self, image: ImageShape) -> int:
        """The first convolution's output before and after its activation, and in windows for the
        second (the library's form of a convolution)."""
        bands, frames = image.pixels
        first = TAPS * frames * bands + 2 * frames * self.hidden_size
        second = (FRAMES_PER_ROW + TAPS + 3) * self.rows * self.hidden_size
        return max(first, second)


@vision_slots.register
def _(tower: WindowTower, hidden_size: int) -> Iterator[Slot]:
    hidden = tower.hidden_size
    for index, inputs in enumerate((tower.layout.mel.bands, hidden)):
        yield Slot(f"convolution.{index}", (hidden, inputs, TAPS), "dense", bias=True)
    yield Slot("positions", (tower.rows, hidden), "dense")
    yield from norm_slots("post_norm", hidden, tower.norm)


@dataclass(frozen=True)
class NoProjector:
    """The tower's features are what the decoder attends to."""


@vision_slots.register
def _(projector: NoProjector, hidden_size: int) -> Iterator[Slot]:
    yield from ()


def read(configs: VisionConfigs, text: ModelSpec) -> Vision:
    config = configs.tower
    hidden, heads = config.positive("d_model"), config.positive("encoder_attention_heads")
    head_dim = config.head_dim(hidden, heads)
    attention = Attention(
        *(heads, heads, head_dim, head_dim**-0.5, None),
        qkv_bias=True,
        out_bias=True,
        key_bias=False,
    )
    activation = config.activation("gelu", "activation_function")
    mlp = Mlp(config.positive("encoder_ffn_dim"), activation, gated=False, bias=True)
    layout = _read_layout(config, configs.images)
    layers = (Layer(attention, mlp, NORM),) * layer_count(config, "encoder_layers")
    return Vision(
        WindowTower(hidden, layout, layers, NORM),
        NoProjector(),
        layout,
        placeholder=TOKEN,
        image_token_id=configs.model.integer("decoder_start_token_id", 50_257),
        enters="cross_attention",
        transcripts=TimedTranscripts(),
    )


def _read_layout(tower: Config, features: Config) -> WindowLayout:
    """The window of the tower's positions; the feature extractor's settings must agree with it."""
    mel = LogMel(tower.positive("num_mel_bins"))
    frames = FRAMES_PER_ROW * tower.positive("max_source_positions")
    wanted = {
        "feature_size": mel.bands,
        "sampling_rate": SAMPLES_PER_S,
        "n_fft": mel.window,
        "hop_length": mel.hop,
        "nb_max_frames": frames,
    }
    for key, value in wanted.items():
        if features.integer(key, value) != value:
            raise NotReadable(
                f"preprocessor_config.json does not match the tower: {key} is "
                f"{features.integer(key, value)}, and it takes {value}",
                where=features.where,
                hint="it may belong to another model",
            )
    features.require_off("dither", "padding_value")
    return WindowLayout(mel, chunk=frames, halvings=1, least=frames * mel.hop, token=TOKEN)


def read_decoder(config: Config) -> ModelSpec:
    """A layer of the file is two here: self-attention alone, and cross-attention with the MLP."""
    hidden, heads = config.positive("d_model"), config.positive("decoder_attention_heads")
    head_dim = config.head_dim(hidden, heads)
    sizes, scale = (heads, heads, head_dim), head_dim**-0.5
    attention = Attention(*sizes, scale, None, qkv_bias=True, out_bias=True, key_bias=False)
    hearing = CrossAttention(*sizes, scale, None, input_norm=NORM, bias=True)
    activation = config.activation("gelu", "activation_function")
    mlp = Mlp(config.positive("decoder_ffn_dim"), activation, gated=False, bias=True)
    pair = Layer(attention, NoFeedForward(), NORM), Layer(hearing, mlp, NORM, mixer_norm=False)
    count = layer_count(config, "decoder_layers")
    config.require_off("scale_embedding")
    tokens = config.positive("max_target_positions")
    sized = Config({**config.values, "hidden_size": hidden}, config.where)
    return decoder(
        sized,
        "whisper",
        pair * count,
        NORM,
        context_tokens=tokens,
        file_layers=tuple(index for index in range(count) for _ in pair),
        input=FirstInput(positions=tokens),
    )


DECODER = Family(
    "whisper",
    read_decoder,
    defaults={
        "vocab_size": 51_865,
        "d_model": 384,
        "decoder_layers": 4,
        "decoder_attention_heads": 6,
        "decoder_ffn_dim": 1536,
        "max_target_positions": 448,
    },
    safetensors={
        **LAYER_NAMES,
        "embedding": "model.decoder.embed_tokens",
        "positions": "model.decoder.embed_positions",
        "norm": "model.decoder.layer_norm",
        "layer": "model.decoder.layers.{layer}.",
        "cross.input_norm": "encoder_attn_layer_norm",
        "cross.q": "encoder_attn.q_proj",
        "cross.k": "encoder_attn.k_proj",
        "cross.v": "encoder_attn.v_proj",
        "cross.o": "encoder_attn.out_proj",
    },
)

FAMILY = VisionFamily(
    "whisper",
    read,
    NAMES,
    decoder=DECODER,
    text_start="model.",
    head="proj_out",
    tower_key=None,
    tower_defaults=TOWER_DEFAULTS,
)
