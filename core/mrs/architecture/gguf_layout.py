"""A model as a GGUF file: its metadata and its tensors, each of rows of parameters.

What `describe_gguf.py` reads is inverted here: tensors come of the same table of names, and the
description is read again and compared, so that a model is refused whose file would say something
else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from struct import pack, unpack
from typing import Any, NamedTuple, cast

from mrs.architecture.describe_gguf import read_gguf
from mrs.architecture.describe_safetensors import text_family
from mrs.architecture.description import CheckpointHeaders, Description
from mrs.architecture.family import Family
from mrs.architecture.family_registry import family_by_gguf_arch
from mrs.architecture.fused_names import FUSED
from mrs.architecture.gguf_metadata import metadata_of
from mrs.architecture.gguf_names import GGUF
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.parameters import list_parameters
from mrs.errors import MrsError, Unsupported
from mrs.formats import FORMATS, Format
from mrs.layers.attention.spec import Attention
from mrs.layers.mamba2.spec import Mamba2
from mrs.layers.rope.spec import Rope, RopeScaling
from mrs.weights.binding import Parameter
from mrs.weights.role import Role

#: Families without an architecture of their own in GGUF files, by the one that has the same layers.
_WRITTEN_AS = {
    "mistral": "llama",
    "mixtral": "llama",
    "internlm3": "llama",
    "olmo2": "olmo2",
    "deepseek_v3": "deepseek2",
    "sarvam_mla": "deepseek2",
    "sarvam_moe": "bailingmoe2",
    "granitemoeshared": "granitemoe",
}
#: Families of which tests compare the tensors and metadata with those of llama.cpp's converter.
WRITTEN = frozenset((
    "afmoe", "arcee", "bailing_moe_v2", "bloom", "cohere", "cohere2", "cohere2_moe", "deepseek_v2",
    "deepseek_v3", "dots1", "ernie4_5", "ernie4_5_moe", "exaone", "exaone4", "falcon", "gemma",
    "gemma2", "gemma3_text", "glm", "glm4", "glm4_moe", "gpt2", "gpt_bigcode", "gpt_neox",
    "gpt_oss", "granite", "granitemoe", "hunyuan_v1_dense", "hunyuan_v1_moe", "internlm3", "jais2",
    "jamba", "lfm2", "lfm2_moe", "llama", "llama4_text", "mamba", "mamba2", "mellum",
    "mimo_v2_flash", "minimax_m2", "mistral", "mixtral", "nemotron", "olmo", "olmo2", "olmo3",
    "olmoe", "phi", "phi3", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "sarvam_mla", "sarvam_moe",
    "seed_oss", "smollm3", "stablelm", "starcoder2",
))  # fmt: skip
#: Architectures whose files say of each layer whether it has a window.
_WITH_PATTERN = frozenset(("olmo2", "exaone4", "mimo2", "mellum", "cohere2moe"))
#: Keys whose value llama.cpp takes from the size of the model if a file lacks them.
_STATED = dict.fromkeys(("phi3", "exaone4"), ("attention.sliding_window",))
_OTHERWISE = "llama.cpp's convert_hf_to_gguf.py may know it; mrs quantizes the file that it writes"
#: Factors of rope that are tensors, by the slot.
_FACTORS = ("rope.factors", "rope.short_factors", "rope.long_factors")


class GgufTensor(NamedTuple):
    """One tensor: the parameters whose rows it consists of, in order.

    With `paired_heads`, the rows of each of so many heads are read pair by pair. If it is
    `transposed`, the last two dimensions of the parameter are swapped. A tensor without parameters
    has the factors of rope of a slot.
    """

    name: str
    shape: tuple[int, ...]
    role: Role
    parameters: tuple[Parameter, ...]
    paired_heads: int = 0
    transposed: bool = False
    factors: str = ""


@dataclass(frozen=True)
class GgufLayout:
    """All of a file but the tokenizer. `rope` is that of the factors that are tensors."""

    metadata: Mapping[str, Any]
    tensors: tuple[GgufTensor, ...]
    rope: Rope | None


def gguf_layout(
    checkpoint: CheckpointHeaders, description: Description, arch: str | None
) -> GgufLayout:
    """The GGUF file of a model in safetensors format. Raises Unsupported if there is none."""
    family, config = text_family(checkpoint, arch)
    written_as = family.gguf_arch or _WRITTEN_AS.get(family.name)
    if written_as is None or family.name not in WRITTEN:
        raise _unwritable(f"a model of the family {family.name}", checkpoint)
    if description.spec.pooler is not None:
        raise _unwritable("a model that makes no replies", checkpoint)
    reader = family_by_gguf_arch(written_as)
    spec = _as_stored(description.spec, reader)
    tensors = _tensors(spec, description, reader)
    headers = {each.name: _Header(each.shape, FORMATS["F32"]) for each in tensors}
    difference, is_usual = "", written_as in _WITH_PATTERN
    for with_pattern in (is_usual, not is_usual):
        values = metadata_of(
            *(spec, config, reader.gguf_keys),
            with_pattern=with_pattern,
            stated=_STATED.get(written_as, ()),
        )
        metadata = {"general.architecture": written_as}
        metadata |= {f"{written_as}.{name}": value for name, value in values.items()}
        difference = _difference(_Headers(metadata, headers, checkpoint.model_id), spec, tensors)
        if not difference:
            rope = _scaled_rope(description.spec)
            return GgufLayout(metadata, tensors, rope)
    raise Unsupported(
        f"a GGUF file cannot say what this {family.name} model is: {difference} would differ",
        where=checkpoint.model_id,
        hint=_OTHERWISE,
    )


def _unwritable(what: str, checkpoint: CheckpointHeaders) -> Unsupported:
    return Unsupported(
        f"{what} is not written to GGUF files",
        where=checkpoint.model_id,
        hint=_OTHERWISE,
    )


class _Header(NamedTuple):
    """The header of a tensor that is to be written."""

    shape: tuple[int, ...]
    format: Format

    @property
    def size_bytes(self) -> int:
        return self.format.size_bytes(self.shape)


@dataclass(frozen=True)
class _Headers:
    """The headers of a file that is to be written, as its reader sees them."""

    config: Mapping[str, Any]
    tensors: Mapping[str, _Header]
    model_id: str
    container: str = "gguf"
    image_config: Mapping[str, Any] = field(default_factory=dict)
    video_config: Mapping[str, Any] = field(default_factory=dict)
    sentence: Any = None


def _as_stored(spec: ModelSpec, reader: Family) -> ModelSpec:
    """The model as a reader of the file should find it."""
    spec = replace(spec, vision=None, file_layers=())
    if reader.gguf_rope_interleaved:
        spec = spec.with_interleaved_rope()
    layers = []
    for layer in spec.layers:
        rope = layer.mixer.rope
        scaling = None if rope is None else _stored_scaling(rope)
        if rope is not None and scaling != rope.scaling:
            mixer = replace(cast(Any, layer.mixer), rope=replace(rope, scaling=scaling))
            layer = replace(layer, mixer=mixer)
        layers.append(layer)
    return replace(spec, layers=tuple(layers))


def _stored_scaling(rope: Rope) -> RopeScaling | None:
    """With factors of single pairs as tensors."""
    scaling = rope.scaling
    if scaling is None or scaling.kind not in ("llama3", "longrope"):
        return scaling
    kind = "factors" if scaling.kind == "llama3" else scaling.kind
    return replace(scaling, kind=cast(Any, kind), factors=(), long_factors=())


def _scaled_rope(spec: ModelSpec) -> Rope | None:
    ropes = (layer.mixer.rope for layer in spec.layers)
    return next((rope for rope in ropes if rope is not None and rope.scaling is not None), None)


def _tensors(spec: ModelSpec, description: Description, reader: Family) -> tuple[GgufTensor, ...]:
    sources = {parameter.name: parameter for parameter in description.parameters}
    names = _names(reader, sources)
    rows: dict[str, list[tuple[int, Parameter]]] = {}
    for parameter in list_parameters(spec, names):
        for piece in parameter.pieces:
            first = 0 if piece.rows is None else piece.rows.start
            rows.setdefault(piece.tensor, []).append((first, parameter))
    pairs = reader.gguf_rope_interleaved
    return tuple(
        _tensor(name, [each for _, each in sorted(parts, key=_first)], sources, spec, pairs)
        for name, parts in rows.items()
    )


def _first(part: tuple[int, Parameter]) -> int:
    return part[0]


def _names(reader: Family, sources: Mapping[str, Parameter]) -> Mapping[str, str]:
    """The names of tensors, without those of fused ones that the file will not have.

    Queries, keys and values are together if they are so in the model's files, unless their rows
    are permuted.
    """
    names = {**GGUF, **reader.gguf}
    fused = {slot for slot in reader.gguf if slot in FUSED and slot != "mixer.qkv"}
    if not reader.gguf_rope_interleaved and _shares_tensor(sources, "mixer.q", "mixer.k"):
        fused.add("mixer.qkv")
    return {slot: name for slot, name in names.items() if slot not in FUSED or slot in fused}


def _shares_tensor(sources: Mapping[str, Parameter], one: str, other: str) -> bool:
    for name, parameter in sources.items():
        if f".{one}." in name and (beside := sources.get(name.replace(one, other))) is not None:
            return parameter.pieces[0].tensor == beside.pieces[0].tensor
    return False


def _tensor(
    name: str,
    parts: Sequence[Parameter],
    sources: Mapping[str, Parameter],
    spec: ModelSpec,
    pairs: bool,
) -> GgufTensor:
    first = parts[0]
    stored = tuple(sources[each.name] for each in parts if each.name in sources)
    slot = _slot(first)
    if not stored and slot in _FACTORS:
        return GgufTensor(name, first.shape, "vector", (), factors=slot)
    transposed = any(piece.transposed for piece in first.pieces)
    shape = _stored_shape(parts, spec)
    if transposed:
        shape = (*shape[:-2], shape[-1], shape[-2])
    heads = _paired_heads(first, slot, spec) if pairs else 0
    return GgufTensor(name, shape, first.role, stored, heads, transposed)


def _slot(parameter: Parameter) -> str:
    """The slot of a parameter: its name without layer and suffix."""
    name = parameter.name
    if parameter.layer is not None:
        name = name.split(".", 2)[2]
    return name.removesuffix(".weight").removesuffix(".bias")


def _stored_shape(parts: Sequence[Parameter], spec: ModelSpec) -> tuple[int, ...]:
    first = parts[0]
    if ".experts." in first.name:
        return len(parts), *first.shape
    mixer = None if first.layer is None else spec.layers[first.layer].mixer
    if isinstance(mixer, Mamba2) and _slot(first) in ("mixer.decay", "mixer.skip"):
        return *first.shape, 1
    if isinstance(mixer, Mamba2) and _slot(first) == "mixer.head_norm":
        return mixer.groups, mixer.values // mixer.groups
    if len(parts) > 1:
        return sum(each.shape[0] for each in parts), *first.shape[1:]
    return first.shape


def _paired_heads(parameter: Parameter, slot: str, spec: ModelSpec) -> int:
    """The heads of a tensor whose rows are permuted, in layers without rope too; 0 for others."""
    mixer = None if parameter.layer is None else spec.layers[parameter.layer].mixer
    if not isinstance(mixer, Attention) or slot not in ("mixer.q", "mixer.k"):
        return 0
    if mixer.rope is not None and mixer.rope.dim != mixer.head_dim:
        raise Unsupported("heads of which only a part rotates are not permuted for GGUF files")
    return mixer.heads if slot == "mixer.q" else mixer.kv_heads


def _difference(headers: _Headers, spec: ModelSpec, tensors: Sequence[GgufTensor]) -> str:
    """What a reader of the file would find to be another than that of the model; "" if nothing."""
    try:
        model = read_gguf(cast(CheckpointHeaders, headers), None, with_vision=False)
    except MrsError as error:
        return f"what its reader finds ({error.what})"
    if where := next(_differing(model.spec, spec, ""), None):
        return where
    read = {piece.tensor for each in model.parameters for piece in each.pieces}
    unread = {each.name for each in tensors} ^ read
    return min(unread) if unread else ""


def _differing(found: Any, wanted: Any, path: str) -> Iterator[str]:
    """The paths of the fields in which two specs differ; GGUF files have numbers of 32 bits."""
    if isinstance(wanted, Rope) and isinstance(found, Rope):
        found, wanted = (_comparable(each) for each in (found, wanted))
    if type(found) is not type(wanted):
        if not _is_number(found) or not _is_number(wanted) or _rounded(found) != _rounded(wanted):
            yield path
    elif is_dataclass(wanted):
        for each in fields(wanted):
            if each.name == "family":
                continue
            one, other = getattr(found, each.name), getattr(wanted, each.name)
            yield from _differing(one, other, f"{path}.{each.name}".removeprefix("."))
    elif isinstance(wanted, dict):
        for key in {*found, *wanted}:
            yield from _differing(found.get(key), wanted.get(key), f"{path}.{key}")
    elif isinstance(wanted, tuple):
        if len(found) != len(wanted):
            yield path
        for index, pair in enumerate(zip(found, wanted, strict=False)):
            yield from _differing(*pair, f"{path}.{index}")
    elif _rounded(found) != _rounded(wanted):
        yield path


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return f"{unpack('<f', pack('<f', value))[0]:.5g}"
    return value


def _comparable(rope: Rope) -> dict[str, Any]:
    """What a rope does, however the files spell its scaling."""
    facts: dict[str, Any] = {each.name: getattr(rope, each.name) for each in fields(rope)}
    scaling = facts.pop("scaling")
    if scaling is None:
        return facts
    facts["kind"] = scaling.kind
    if scaling.kind != "factors":
        facts["factor"] = float(scaling.get("factor", 1.0))
    if scaling.kind in ("yarn", "longrope"):
        facts["trained"] = float(scaling.trained_tokens)
    if scaling.kind == "longrope":
        facts.pop("factor")
        facts["magnitude"] = float(scaling.magnitude)
    if scaling.kind == "yarn":
        facts |= {
            "fast": float(scaling.get("beta_fast", 32)),
            "slow": float(scaling.get("beta_slow", 1)),
            "truncate": float(scaling.get("truncate", 1)),
            "magnitude": float(scaling.magnitude),
        }
    return facts
