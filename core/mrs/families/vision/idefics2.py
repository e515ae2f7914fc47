"""Idefics 2: images of nearly their own size, which become a few rows each (arXiv 2405.02246)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.vision.image_layouts import read_resampling, read_scale, read_size
from mrs.architecture.vision.towers.siglip2_tower import read_nearest_siglip
from mrs.architecture.vision.towers.siglip_tower import SIGLIP_DEFAULTS, SIGLIP_IMAGES, siglip_names
from mrs.architecture.vision.vision_family import VisionConfigs, VisionFamily
from mrs.architecture.vision_slots import vision_slots
from mrs.architecture.vision_spec import ImageShape, PixelScale, Vision
from mrs.config.config import Config
from mrs.errors import NotReadable
from mrs.layers.attention.spec import Attention
from mrs.layers.mlp.spec import Mlp, mlp_slots
from mrs.layers.norm.config import read_norm
from mrs.layers.norm.spec import Norm
from mrs.layers.slots import Slot, norm_slots

EDGE, TOKEN = "<fake_token_around_image>", "<image>"


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
_PERCEIVER_NAMES = {
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
class QuartersLayout:
    """Views keep their aspect ratio, and edges from `shortest_edge` to `longest_edge` pixels.

    The last view is the whole image; if it `is_split`, its quarters precede it. Each view becomes
    `rows` rows. The tower's input are the pixels of each patch, without incomplete ones.
    """

    patch_size: int
    shortest_edge: int
    longest_edge: int
    is_split: bool
    rows: int
    scale: PixelScale
    resampling: str
    is_resizable: bool = True

    def shape(self, height: int, width: int) -> ImageShape:
        parts = (box[2:] for box in self.boxes(height, width))
        return self._shape([self.scaled(*size) for size in parts])

    def largest(self, edge: int) -> ImageShape:
        """An upper bound: all views are squares."""
        sizes = [-(-edge // 2)] * 4 if self.is_split else []
        most = (max(min(size, self.longest_edge), self.shortest_edge) for size in [*sizes, edge])
        return self._shape([(size, size) for size in most])

    def boxes(self, height: int, width: int) -> list[tuple[int, int, int, int]]:
        """(top, left, height, width) of each view in the image; one of a line has no quarters."""
        whole = [(0, 0, height, width)]
        if not self.is_split or min(height, width) < 2:
            return whole
        tops = ((0, height // 2), (height // 2, height - height // 2))
        lefts = ((0, width // 2), (width // 2, width - width // 2))
        return [(top, left, tall, wide) for top, tall in tops for left, wide in lefts] + whole

    def scaled(self, height: int, width: int) -> tuple[int, int]:
        """(height, width) of a view that has this size in the image."""
        ratio, most = width / height, self.longest_edge
        if width >= height and width > most:
            height, width = int(most / ratio), most
        elif height > width and height > most:
            height, width = most, int(most * ratio)
        return max(height, self.shortest_edge), max(width, self.shortest_edge)

    def _shape(self, sizes: Sequence[tuple[int, int]]) -> ImageShape:
        size = self.patch_size
        views = tuple((height // size, width // size) for height, width in sizes)
        patches = sum(rows * columns for rows, columns in views)
        return ImageShape(
            pixels=(patches, 3 * size**2),
            patches=patches,
            rows=len(views) * self.rows,
            text=EDGE + (TOKEN * self.rows + EDGE) * len(views),
            views=views,
        )


def read_layout(images: Config, patch_size: int, rows: int) -> QuartersLayout:
    images.allow_only("do_resize", True)
    shortest, longest = read_size(images, "size", "shortest_edge", "longest_edge")
    if shortest < patch_size:
        raise NotReadable(
            f"the shortest edge of {shortest} pixels is less than a patch", where=images.where
        )
    return QuartersLayout(
        patch_size,
        shortest,
        longest,
        images.flag("do_image_splitting", False),
        rows,
        read_scale(images),
        read_resampling(images),
    )


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

    def most_values(self, image: ImageShape, width: int, hidden_size: int) -> int:
        """For the patches of a view: three tensors inside the MLP and its input, or six outside.

        The latter are the result, its norm, that joined with the rows, and keys and values; the
        MLPs of rows need less than a few of them.
        """
        patches = max(rows * columns for rows, columns in image.views) + self.rows
        return patches * max(3 * self.widen.intermediate + width, 6 * hidden_size)


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
            for slot, name in _PERCEIVER_NAMES.items()
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


def read(configs: VisionConfigs, text: ModelSpec) -> Vision:
    model, tower = configs.model, read_nearest_siglip(configs.tower)
    perceiver = Config({**PERCEIVER_DEFAULTS, **model.mapping("perceiver_config")}, model.where)
    mlp = text.layers[0].feed_forward
    assert isinstance(mlp, Mlp)
    assert text.norm is not None
    projector = read_perceiver(
        perceiver, tower.hidden_size, replace(mlp, bias=False), text.hidden_size, text.norm
    )
    return Vision(
        tower,
        projector,
        read_layout(configs.images, tower.patch_size, projector.rows),
        placeholder=TOKEN,
        image_token_id=model.integer("image_token_id", 32_001),
        edge=EDGE,
    )


FAMILY = VisionFamily(
    "idefics2",
    read,
    names={
        **siglip_names("model.vision_model."),
        **connector_names("model.connector."),
    },
    text="mistral",
    text_start="model.text_model.",
    head="lm_head",
    tower_defaults={**SIGLIP_DEFAULTS, "patch_size": 32},
    image_defaults={
        **SIGLIP_IMAGES,
        "size": {"shortest_edge": 378, "longest_edge": 980},
        "resample": 2,
    },
)
