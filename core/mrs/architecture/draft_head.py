"""A model's own draft heads, described as a model: each is a layer that reads the target's states.

A head shares embedding and output head with the target. One that is alone drafts several tokens by
reading its own state in place of the target's; of several, each drafts one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
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
#: Further heads than so many are not read.
_MOST_HEADS = 8
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
    name stands for that of its layer, and `{head}` in that for the number of the head. A container
    without names has no head, and a head without a `norm` has none before the output head. `layer`
    makes the layer of each head of the target and its config, or None if it is not known. The other
    fields are those of `JoinedInput`; where `chained` is None, only the first head is known.
    """

    safetensors: Names
    gguf: Names = field(default_factory=dict)
    layer: Callable[[ModelSpec, Config], Layer | None] = layer_of_target
    reads_normed: bool = True
    feeds_normed: bool = True
    state_first: bool = False
    chained: bool | None = None


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
    chained=True,
)


class HeadModel(NamedTuple):
    """The draft heads of a checkpoint: a model of a layer for each, and its parameters.

    Outside of the layers, those of the first head have the usual names; those of others begin with
    `heads.` and a number.
    """

    spec: ModelSpec
    parameters: Sequence[Parameter]


def each_head(spec: ModelSpec) -> ModelSpec:
    """The spec of each of the heads, which are alike, by itself."""
    assert isinstance(spec.input, JoinedInput)
    return replace(spec, layers=spec.layers[:1], input=replace(spec.input, heads=1))


def read_head(
    files: HeadFiles,
    config: Config,
    target: ModelSpec,
    names: Names,
    own: Names,
    tensors: Mapping[str, TensorHeader],
    bind: Callable[[ModelSpec, Names], Sequence[Parameter]],
) -> HeadModel | None:
    """The draft heads of `target` in a checkpoint, or None: a file may lack them, or parts of one.

    `names` is the target's table of names, and `own` that of `files` for this container. `bind`
    lists the parameters of a spec.
    """
    if not own:
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
    heads: list[Sequence[Parameter]] = []
    most = 1 if files.chained is None else _MOST_HEADS
    for table in _tables(len(target.layers), most, names, own):
        if not any(table["join"] in name for name in tensors):
            break
        parameters = bind(spec, table)
        try:
            check_tensors(parameters, tensors, "")
        except NotReadable:
            break
        heads.append(parameters)
    if not heads:
        return None
    count = len(heads)
    joined = replace(joined, heads=count, chained=files.chained is True and count > 1)
    named = [_named(each, head) for head, own in enumerate(heads) for each in own]
    spec = replace(spec, layers=(layer,) * count, input=joined)
    return HeadModel(spec, [each for each in named if each is not None])


def _tables(layers: int, heads: int, names: Names, own: Names) -> Iterator[Names]:
    """The names of the tensors of the first head, of the second and so on."""
    for head in range(heads):
        usual = names["layer"].format(layer=layers + head)
        prefix = own.get("layer", usual).replace("{head}", str(head))
        outside = {slot: name.replace("{layer}", prefix) for slot, name in own.items()}
        yield {**names, **outside, "layer": prefix}


def _named(parameter: Parameter, head: int) -> Parameter | None:
    """A parameter of a head as one of all heads; None for those that it shares with the first."""
    if parameter.name.rpartition(".")[0] in _SHARED:
        return None if head else parameter._replace(is_shared=True)
    if not head:
        return parameter
    if parameter.layer is None:
        return parameter._replace(name=f"heads.{head}.{parameter.name}")
    name = parameter.name.removeprefix("layers.0.")
    return parameter._replace(name=f"layers.{head}.{name}", layer=head)
