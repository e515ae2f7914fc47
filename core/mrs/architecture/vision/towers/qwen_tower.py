"""The vision tower and projector of the Qwen-VL families."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.vision.dynamic_layout import DynamicLayout, read_dynamic
from mrs.architecture.vision.image_layouts import CLIP_IMAGES
from mrs.architecture.vision.patch_merger import PatchMerger
from mrs.architecture.vision.two_axes import require_two_axes
from mrs.architecture.vision.vision_family import VisionConfigs
from mrs.architecture.vision_slots import later_frames, patch_slot, vision_slots
from mrs.architecture.vision_spec import Patches, Tower, VideoLayout, Vision
from mrs.config.config import Config
from mrs.config.layer_kinds import layer_count
from mrs.errors import NotReadable
from mrs.layers.attention.spec import Attention
from mrs.layers.layer import Layer
from mrs.layers.mlp.spec import Mlp
from mrs.layers.norm.spec import Norm
from mrs.layers.slots import Slot, norm_slots

#: (video_preprocessor_config.json, layout of images, frames of an image, token) -> layout
ReadVideo = Callable[[Config, DynamicLayout, int, int], VideoLayout]

TOKEN = "<|image_pad|>"
TOWER = "model.visual."
#: The names that older versions of transformers write.
SPELLINGS = {TOWER: "visual.", "model.language_model.": "model."}

#: Slot -> module name, for what both towers have.
NAMES = {
    "patches": f"{TOWER}patch_embed.proj",
    "layer": f"{TOWER}blocks.{{layer}}.",
    "mixer.norm": "norm1",
    "mixer.qkv": "attn.qkv",
    "mixer.o": "attn.proj",
    "ffn.norm": "norm2",
    "projector.norm": f"{TOWER}merger.ln_q",
    "projector.up": f"{TOWER}merger.mlp.0",
    "projector.down": f"{TOWER}merger.mlp.2",
}
#: Defaults of transformers.
TOWER_DEFAULTS = {
    "depth": 32,
    "num_heads": 16,
    "in_channels": 3,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}
IMAGE_DEFAULTS = {
    **CLIP_IMAGES,
    "size": {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280},
}
VIDEO_DEFAULTS = {
    **CLIP_IMAGES,
    "size": {"shortest_edge": 28 * 28 * 128, "longest_edge": 28 * 28 * 768},
}
#: The id of the token of videos in the published models.
VIDEO_TOKEN_ID = 151_656


@dataclass(frozen=True)
class QwenTower(Tower):
    """A vision transformer for images of any size, with two-dimensional rope.

    One half of the rotary pairs rotates by a patch's row, the other half by its column.
    Patches attend within windows of `window` x `window` patches; in the layers `full`, and in all
    layers if `window` is None, to the whole image. With a `position_side`, a table of so many rows
    and columns of learned embeddings is interpolated to the size of the image: linearly, so that
    their `corners` or `edges` meet, or by `cubic` functions, so that their edges do. There may be
    a `pre_norm` of patches before they get positions, and a `norm` after the last layer. The
    output is that of the last layer, followed by those of the layers `tapped`.
    """

    hidden_size: int
    patches: Patches
    layers: tuple[Layer, ...]
    rope_base: float
    window: int | None = None
    full: tuple[int, ...] = ()
    position_side: int = 0
    tapped: tuple[int, ...] = ()
    interpolation: Literal["corners", "edges", "cubic"] = "corners"
    pre_norm: Norm | None = None
    norm: Norm | None = None

    @property
    def output_size(self) -> int:
        return self.hidden_size * (1 + len(self.tapped))

    @property
    def interpolated_values(self) -> int:
        return self.position_side**2 * self.hidden_size


@vision_slots.register
def _(tower: QwenTower, hidden_size: int) -> Iterator[Slot]:
    yield patch_slot(tower.patches, tower.hidden_size)
    yield from later_frames(tower.patches, tower.hidden_size)
    if tower.position_side:
        yield Slot("positions", (tower.position_side**2, tower.hidden_size), "dense")
    for name, norm in (("pre_norm", tower.pre_norm), ("post_norm", tower.norm)):
        if norm is not None:
            yield from norm_slots(name, tower.hidden_size, norm)


def read_tower(
    tower: Config,
    hidden_size: int,
    mlp: Mlp,
    norm: Norm,
    window: int | None = None,
    full: tuple[int, ...] = (),
    **changes: Any,
) -> QwenTower:
    """A tower whose attention has biases in all projections; `changes` override its fields."""
    tower.allow_only("in_channels", 3)
    heads = tower.positive("num_heads")
    head_dim = tower.head_dim(hidden_size, heads)
    require_two_axes(head_dim, tower.where)
    fields = {"qkv_bias": True, "out_bias": True, **changes}
    attention = Attention(heads, heads, head_dim, head_dim**-0.5, None, **fields)
    return QwenTower(
        hidden_size,
        Patches(tower.positive("patch_size"), frames=tower.positive("temporal_patch_size")),
        layers=(Layer(attention, mlp, norm),) * layer_count(tower, "depth"),
        rope_base=read_rope_base(tower),
        window=window,
        full=full,
    )


def read_rope_base(tower: Config) -> float:
    """The base of the rope by row and column."""
    rope = Config(tower.mapping("rope_parameters"), tower.where)
    rope.allow_only("rope_type", "axial", "default")
    return rope.positive_number("rope_theta", 1e4, above=1)


def read_qwen(
    configs: VisionConfigs, text: ModelSpec, tower: QwenTower, read_video: ReadVideo
) -> Vision:
    """The vision part around `tower`, which is the same in all families but for videos."""
    require_sections(text, configs.model.where)
    merge = configs.tower.positive("spatial_merge_size")
    layout = read_dynamic(configs.images, tower.patches.size, merge, TOKEN)
    video_token_id = configs.model.integer("video_token_id", VIDEO_TOKEN_ID)
    return Vision(
        tower,
        PatchMerger(tower.hidden_size, merge, tower.layers[0].norm, len(tower.tapped)),
        layout,
        placeholder=TOKEN,
        image_token_id=configs.model.integer("image_token_id", 151_655),
        deep_layers=len(tower.tapped),
        video=read_video(configs.videos, layout, tower.patches.frames, video_token_id),
        positions="multimodal",
    )


def require_sections(text: ModelSpec, where: str) -> None:
    """Raises NotReadable unless the language model's rope is multimodal."""
    ropes = [layer.mixer.rope for layer in text.layers if layer.mixer.rope is not None]
    if not ropes or not all(rope.sections for rope in ropes):
        raise NotReadable("the configuration lacks 'mrope_section'", where=where)
