"""A model's own draft head, described as a model: one layer that reads the target's states.

The head shares embedding and output head with the target. It drafts several tokens by reading its
own state in place of the target's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from mrs.architecture.check import check_tensors
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.errors import NotReadable, Unsupported
from mrs.layers.attention.spec import Attention
from mrs.layers.joined_input.spec import JoinedInput
from mrs.layers.latent_attention.spec import IndexedAttention, LatentAttention
from mrs.layers.layer import Layer
from mrs.weights.binding import Parameter
from mrs.weights.weight_scheme import TensorHeader

Names = Mapping[str, str]
#: The weights that a head shares with its target.
_SHARED = ("embedding", "embedding_in", "embedding_out", "head")


def layer_of_target(target: ModelSpec, config: Config) -> Layer | None:
    """The last of the target's layers that attends to all tokens, or that chooses among all."""
    for layer in reversed(target.layers):
        mixer = layer.mixer
        if isinstance(mixer, IndexedAttention):
            return replace(layer, mixer=replace(mixer, lends_choice=False))
        if type(mixer) in (Attention, LatentAttention) and getattr(mixer, "window", None) is None:
            return layer
    return None


@dataclass(frozen=True)
class HeadFiles:
    """How the files of a family have a draft head.

    `safetensors` and `gguf` name what is outside of its layer, and may name the `layer`, which by
    default is the one after the target's last, and what is called otherwise in it. `{layer}` in a
    name stands for that of its layer. A container without names has no head, and a head without a
    `norm` has none before the output head. `layer` makes the head's layer of the target and its
    config, or None if it is not known. The other fields are those of `JoinedInput`.
    """

    safetensors: Names
    gguf: Names = field(default_factory=dict)
    layer: Callable[[ModelSpec, Config], Layer | None] = layer_of_target
    reads_normed: bool = True
    feeds_normed: bool = True
    state_first: bool = False


_NEXTN_GGUF = {
    "join": "{layer}nextn.eh_proj",
    "join.token_norm": "{layer}nextn.enorm",
    "join.state_norm": "{layer}nextn.hnorm",
    "norm": "{layer}nextn.shared_head_norm",
}
#: Qwen's heads.
MTP = HeadFiles(
    safetensors={
        "layer": "mtp.layers.0.",
        "join": "mtp.fc",
        "join.token_norm": "mtp.pre_fc_norm_embedding",
        "join.state_norm": "mtp.pre_fc_norm_hidden",
        "norm": "mtp.norm",
    },
    gguf=_NEXTN_GGUF,
)
#: DeepSeek's. The copies of embedding and output head that files have beside them are not read.
NEXTN = HeadFiles(
    safetensors={
        "join": "{layer}eh_proj",
        "join.token_norm": "{layer}enorm",
        "join.state_norm": "{layer}hnorm",
        "norm": "{layer}shared_head.norm",
    },
    gguf=_NEXTN_GGUF,
    feeds_normed=False,
)


class HeadModel(NamedTuple):
    """A draft head as read from a checkpoint: a model of one layer, and its parameters."""

    spec: ModelSpec
    parameters: Sequence[Parameter]


def read_head(
    files: HeadFiles,
    config: Config,
    target: ModelSpec,
    names: Names,
    own: Names,
    tensors: Mapping[str, TensorHeader],
    bind: Callable[[ModelSpec, Names], Sequence[Parameter]],
) -> HeadModel | None:
    """The draft head of `target` in a checkpoint, or None: a file may lack it, or parts of it.

    `names` is the target's table of names, and `own` that of `files` for this container. `bind`
    lists the parameters of a spec.
    """
    prefix = own.get("layer") or names["layer"].format(layer=len(target.layers))
    outside = {slot: name.replace("{layer}", prefix) for slot, name in own.items()}
    if not own or not any(outside["join"] in name for name in tensors):
        return None
    try:
        layer = files.layer(target, config)
    except (NotReadable, Unsupported):  # the model is complete without it
        return None
    if layer is None or target.norm is None:
        return None
    joined = JoinedInput(
        target.norm,
        reads_normed=files.reads_normed,
        feeds_normed=files.feeds_normed,
        state_first=files.state_first,
    )
    spec = replace(
        target,
        layers=(layer,),
        file_layers=(),
        input=joined,
        norm=target.norm if "norm" in own else None,
        vision=None,
        layer_inputs=None,
        ranking=None,
    )
    parameters = bind(spec, {**names, **outside, "layer": prefix})
    try:
        check_tensors(parameters, tensors, "")
    except NotReadable:
        return None
    return HeadModel(spec, [_shared(each) for each in parameters])


def _shared(parameter: Parameter) -> Parameter:
    slot = parameter.name.rpartition(".")[0]
    return parameter._replace(is_shared=slot in _SHARED)
