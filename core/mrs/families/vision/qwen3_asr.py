"""Qwen3-ASR (arXiv 2601.21337): speech to text, by Qwen 3 and an encoder of spectrograms."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.vision.shared_projectors import MlpProjector
from mrs.architecture.vision.vision_family import VisionConfigs, VisionFamily
from mrs.architecture.vision_slots import vision_slots
from mrs.architecture.vision_spec import (
    SAMPLES_PER_S,
    AudioLayout,
    ImageShape,
    LogMel,
    Tower,
    Transcripts,
    Vision,
)
from mrs.config.config import Config
from mrs.config.layer_kinds import layer_count
from mrs.errors import NotReadable
from mrs.layers.attention.spec import Attention
from mrs.layers.layer import Layer
from mrs.layers.mlp.spec import Mlp
from mrs.layers.norm.spec import Norm
from mrs.layers.slots import Slot, norm_slots

TOKEN = "<|audio_pad|>"
#: Slot -> module name.
NAMES = {
    "layer": "model.audio_tower.layers.{layer}.",
    "convolution.0": "model.audio_tower.conv2d1",
    "convolution.1": "model.audio_tower.conv2d2",
    "convolution.2": "model.audio_tower.conv2d3",
    "patches": "model.audio_tower.conv_out",
    "post_norm": "model.audio_tower.ln_post",
    "mixer.norm": "self_attn_layer_norm",
    "mixer.q": "self_attn.q_proj",
    "mixer.k": "self_attn.k_proj",
    "mixer.v": "self_attn.v_proj",
    "mixer.o": "self_attn.out_proj",
    "ffn.norm": "final_layer_norm",
    "ffn.up": "fc1",
    "ffn.down": "fc2",
    "projector.up": "model.multi_modal_projector.linear_1",
    "projector.down": "model.multi_modal_projector.linear_2",
}
#: In files as first published, without transformers' class.
SPELLINGS = {
    "model.audio_tower.": "thinker.audio_tower.",
    "model.multi_modal_projector.linear_1": "thinker.audio_tower.proj1",
    "model.multi_modal_projector.linear_2": "thinker.audio_tower.proj2",
    "model.language_model.": "thinker.model.",
    "lm_head": "thinker.lm_head",
}
#: Defaults of transformers.
TOWER_DEFAULTS = {
    "num_mel_bins": 128,
    "encoder_layers": 24,
    "encoder_attention_heads": 16,
    "encoder_ffn_dim": 4096,
    "d_model": 1024,
    "activation_function": "gelu",
    "n_window": 50,
    "output_dim": 3584,
    "n_window_infer": 800,
    "downsample_hidden_size": 480,
}
FEATURE_DEFAULTS = {"feature_size": 128, "min_length": SAMPLES_PER_S // 2}
#: What the model can transcribe, by codes of ISO 639.
LANGUAGES = {
    "ar": "Arabic",
    "cs": "Czech",
    "da": "Danish",
    "de": "German",
    "el": "Greek",
    "en": "English",
    "es": "Spanish",
    "fa": "Persian",
    "fi": "Finnish",
    "fil": "Filipino",
    "fr": "French",
    "hi": "Hindi",
    "hu": "Hungarian",
    "id": "Indonesian",
    "it": "Italian",
    "ja": "Japanese",
    "ko": "Korean",
    "mk": "Macedonian",
    "ms": "Malay",
    "nl": "Dutch",
    "pl": "Polish",
    "pt": "Portuguese",
    "ro": "Romanian",
    "ru": "Russian",
    "sv": "Swedish",
    "th": "Thai",
    "tr": "Turkish",
    "vi": "Vietnamese",
    "yue": "Cantonese",
    "zh": "Chinese",
}
#: Convolutions, each of which halves frames and bands.
HALVINGS = 3
#: Frames in a chunk, which are convolved apart from others: a second. Their rows have positions.
CHUNK = 100
#: Chunks that are convolved at once: their values are many times as many as the rows'.
CHUNKS_AT_ONCE = 4


@dataclass(frozen=True)
class SpectrogramTower(Tower):
    """Convolutions of `channels` of each chunk, then a transformer of all rows in windows.

    A window has `window` chunks. Rows have sinusoidal positions in their chunk.
    """

    hidden_size: int
    layout: AudioLayout
    channels: int
    window: int
    layers: tuple[Layer, ...]
    norm: Norm

    @property
    def bands(self) -> int:
        """Bands after the convolutions."""
        bands = self.layout.mel.bands
        for _ in range(HALVINGS):
            bands = -(-bands // 2)
        return bands

    @property
    def window_rows(self) -> int:
        return self.window * self.layout.rows_of(CHUNK)

    def embedding_values(self, image: ImageShape) -> int:
        """Chunks before the first activation, twice after it, and once more in windows of 3 x 3
        (the library's form of a convolution); and the rows, with positions."""
        bands, frames = self.layout.mel.bands, image.pixels[1]
        at_once = min(CHUNKS_AT_ONCE, -(-frames // CHUNK))
        first = self.channels * -(-bands // 2) * (CHUNK // 2)
        return at_once * (3 * first + 9 * first // 4) + 3 * image.rows * self.hidden_size


@vision_slots.register
def _(tower: SpectrogramTower, hidden_size: int) -> Iterator[Slot]:
    for index in range(HALVINGS):
        inputs = tower.channels if index else 1
        yield Slot(f"convolution.{index}", (tower.channels, inputs, 3, 3), "dense", bias=True)
    yield Slot("patches", (tower.hidden_size, tower.channels * tower.bands))
    yield from norm_slots("post_norm", tower.hidden_size, tower.norm)


def read(configs: VisionConfigs, text: ModelSpec) -> Vision:
    config = configs.tower
    layout = AudioLayout(
        _log_mel(configs.images, config),
        chunk=CHUNK,
        halvings=HALVINGS,
        least=configs.images.integer("min_length"),
        token=TOKEN,
    )
    config.allow_only("n_window", CHUNK // 2)
    window, hidden = config.positive("n_window_infer"), config.positive("d_model")
    if window % CHUNK:
        raise NotReadable(
            f"n_window_infer = {window} is not a multiple of {CHUNK}", where=config.where
        )
    if hidden % 2 or hidden < 4:
        raise NotReadable(f"d_model = {hidden} is not even, or below 4", where=config.where)
    if config.positive("output_dim") != text.hidden_size:
        raise NotReadable(
            f"output_dim = {config.positive('output_dim')} differs from the language model's "
            f"hidden_size = {text.hidden_size}",
            where=config.where,
        )
    config.require_off("scale_embedding")
    activation = config.activation("gelu", "activation_function")
    layer = _read_layer(config, hidden)
    tower = SpectrogramTower(
        hidden,
        layout,
        channels=config.positive("downsample_hidden_size"),
        window=window // CHUNK,
        layers=(layer,) * layer_count(config, "encoder_layers"),
        norm=layer.norm,
    )
    return Vision(
        tower,
        MlpProjector(hidden, activation, inner=hidden),
        layout,
        placeholder=TOKEN,
        image_token_id=configs.model.integer("audio_token_id"),
        transcripts=Transcripts("language {}", "<asr_text>", tuple(LANGUAGES.items())),
    )


def _log_mel(features: Config, tower: Config) -> LogMel:
    """The spectrogram of the feature extractor's settings."""
    bands = features.positive("feature_size")
    if bands != tower.positive("num_mel_bins"):
        raise NotReadable(
            f"feature_size = {bands} differs from num_mel_bins = {tower.positive('num_mel_bins')}",
            where=tower.where,
        )
    features.allow_only("sampling_rate", SAMPLES_PER_S)
    features.allow_only("n_fft", LogMel.window)
    features.allow_only("hop_length", LogMel.hop)
    features.allow_only("n_window", CHUNK // 2)
    features.require_off("dither", "padding_value")
    return LogMel(bands)


def _read_layer(config: Config, hidden: int) -> Layer:
    heads = config.positive("encoder_attention_heads")
    head_dim = config.head_dim(hidden, heads)
    mlp = Mlp(
        config.positive("encoder_ffn_dim"),
        config.activation("gelu", "activation_function"),
        gated=False,
        bias=True,
    )
    return Layer(
        Attention(heads, heads, head_dim, head_dim**-0.5, None, qkv_bias=True, out_bias=True),
        mlp,
        Norm(1e-5, "layer", bias=True),
    )


FAMILY = VisionFamily(
    "qwen3_asr",
    read,
    NAMES,
    text="qwen3",
    text_types={"qwen3_asr_text": "qwen3"},
    text_start="model.language_model.",
    head="lm_head",
    defaults={"audio_token_id": 151_676},
    tower_key="audio_config",
    wrapper="thinker_config",
    spellings=SPELLINGS,
    tower_defaults=TOWER_DEFAULTS,
    image_defaults=FEATURE_DEFAULTS,
)
