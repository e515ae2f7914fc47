"""A field that no fast path knows makes a layer slow and right, never fast and wrong.

Each path that computes a spec in another way than operation by operation, or that plans, cuts or
captures it, names the fields that it knows. Here every field of every spec is changed in turn.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, make_dataclass, replace
from importlib import import_module
from inspect import isabstract
from operator import attrgetter
from typing import Any

import pytest

from mrs import layers
from mrs.architecture import shards
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.shardable import SHARDABLE, require_shardable
from mrs.distributed import shard
from mrs.engine import decode_graph
from mrs.errors import Unsupported
from mrs.formats import FORMATS
from mrs.graph import layer_graph, operations
from mrs.graph.known_operations import SETTLED_OPERATIONS, unknown_field
from mrs.graph.operations import ScaleEach
from mrs.kernels.triton.expert_blocks import ACTIVATIONS
from mrs.layers.altup.spec import AltUp
from mrs.layers.attention.spec import Attention, EncoderAttention, SharedAttention
from mrs.layers.cross_attention.spec import CrossAttention
from mrs.layers.empty.spec import NoFeedForward, NoMixer
from mrs.layers.first_input.spec import FirstInput
from mrs.layers.forward_pass import ForwardShape
from mrs.layers.gated_delta_net.spec import GatedDeltaNet
from mrs.layers.grid_convolution.spec import GridConvolution
from mrs.layers.joined_input.spec import JoinedInput
from mrs.layers.kda.spec import KimiDeltaAttention
from mrs.layers.known_fields import SETTLED, Known
from mrs.layers.latent_attention.spec import (
    BorrowedChoiceAttention,
    IndexedAttention,
    Indexer,
    LatentAttention,
)
from mrs.layers.laurel.spec import Laurel
from mrs.layers.layer import Layer
from mrs.layers.layer_inputs.spec import GatedInput, LayerInputs
from mrs.layers.mamba.spec import Mamba
from mrs.layers.mamba2.spec import Mamba2
from mrs.layers.mixer import CacheShape, Code, Mixer, ShardAxis
from mrs.layers.mlp.spec import Mlp
from mrs.layers.moe.spec import MlpAndMoe, Moe, Router
from mrs.layers.norm.spec import Norm
from mrs.layers.parallel_mixers.spec import ParallelMixers
from mrs.layers.relative_attention.spec import BiasedAttention, DisentangledAttention
from mrs.layers.rope.spec import QueryScale, Rope, RopeScaling
from mrs.layers.short_convolution.spec import ShortConvolution
from mrs.layers.slots import Slot
from mrs.model import fusable
from mrs.model.native_program import NATIVE, NativeProgram
from mrs.plan.memory.uncounted import COUNTED, uncounted_layer_bytes, uncounted_model_bytes


@dataclass(frozen=True)
class OwnMixer(Mixer):
    """A kind that names its fields itself, and no table does."""

    code = Code(
        operations="mrs.graph.state_operations:short_convolution",
        fields="size rope",
        paths="shared planned",
    )
    size: int
    rope: None = None

    def slots(self, hidden_size: int) -> Iterator[Slot]:
        yield Slot("mixer.out", (hidden_size, self.size))

    @property
    def shard_axes(self) -> tuple[ShardAxis, ...]:
        return (ShardAxis("channel", self.size),)

    @property
    def cache_shape(self) -> CacheShape:
        return CacheShape()


NORM = Norm(1e-6)
ROPE = Rope(16, 1e4, RopeScaling("linear", (("factor", 2.0),)))
ATTENTION = Attention(4, 2, 16, 0.25, ROPE, qk_norm=NORM)
MLP = Mlp(96)
MOE = Moe(Router(4, 2), MLP)
STATES = (
    GatedDeltaNet(2, 4, 16, 16, 4, NORM),
    KimiDeltaAttention(2, 16, 4, NORM),
    Mamba2(4, 16, 16, 2, 4, NORM),
)
#: Mixers of which the native library has all operations, beside attention.
MLA = (4, 16, 16, 32, 24, 0.25, ROPE, NORM)
MIXERS = (
    *STATES,
    ShortConvolution(64, 4),
    ParallelMixers(ATTENTION, STATES[2]),
    LatentAttention(*MLA, query_scale=QueryScale(0.1, 64)),
    SharedAttention(Attention(4, 2, 16, 0.25, ROPE, qk_norm=NORM), 0),
    Mamba(64, 16, 4, 4, NORM),
)
LAYER = Layer(ATTENTION, MLP, NORM)
#: Layers that have all specs of modules and layers among them.
LAYERS = (
    LAYER,
    *(Layer(mixer, MOE, NORM) for mixer in STATES),
    Layer(Mamba(64, 16, 4, 4, NORM), MlpAndMoe(MLP, MOE, NORM), NORM),
    Layer(ShortConvolution(64, 4), NoFeedForward(), NORM),
    Layer(ParallelMixers(ATTENTION, STATES[2]), MLP, NORM, residual_scale=0.5),
    Layer(SharedAttention(Attention(4, 2, 16, 0.25, ROPE), 0), MLP, NORM, style="sandwich"),
    Layer(
        LatentAttention(*MLA, query_scale=QueryScale(0.1, 64)), MOE, NORM, laurel=Laurel(8, NORM)
    ),
    Layer(NoMixer(), MLP, NORM, gated_input=GatedInput(16, "silu", NORM)),
    Layer(ATTENTION, MLP, NORM, altup=AltUp(4, 0, True, NORM)),
)
#: Those that no graph can hold.
OTHERS = (
    Layer(CrossAttention(4, 2, 16, 0.25, NORM), MLP, NORM, style="gated"),
    Layer(EncoderAttention(4, 2, 16, 0.25, ROPE), MLP, NORM, style="post_sum"),
    Layer(IndexedAttention(*MLA, indexer=Indexer(2, 16, 8, False, NORM)), MLP, NORM),
    Layer(BorrowedChoiceAttention(*MLA, top_k=8), MLP, NORM),
    Layer(OwnMixer(64), MLP, NORM),
)
#: Those that processes do not share either.
WHOLE = (
    Layer(BiasedAttention(4, 4, 16, 0.25, None), MLP, NORM, style="post_sum"),
    Layer(DisentangledAttention(4, 4, 16, 0.25, None, norm=NORM), MLP, NORM, style="post_sum"),
)
MODEL = ModelSpec("made_up", 160, 64, (LAYER,), NORM, tied_head=True, context_tokens=512)
FULL_MODEL = replace(
    MODEL,
    input=FirstInput(NORM, 512),
    layer_inputs=LayerInputs(160, 16, NORM),
    altup=AltUp(4, 0, True, NORM),
)
#: A draft head's.
JOINED = replace(MODEL, input=JoinedInput(NORM, feeds_normed=True))
SHAPE = ForwardShape(16, 16, 64, FORMATS["F32"], FORMATS["F32"])


@dataclass(frozen=True)
class Path:
    """A way to compute `specs`, if it `takes` them; what it knows, and what it leaves to others."""

    name: str
    specs: tuple[Any, ...]
    takes: Callable[[Any], bool]
    known: tuple[Known, ...]
    leaves: Mapping[str, str] = field(default_factory=dict)
    apart: tuple[str, ...] = ()
    own: str = ""

    def knows(self, part: Any) -> set[str]:
        """The fields of a spec that the path names, or its kind itself for its path `own`."""
        code = vars(type(part)).get("code")
        declared = code.fields.split() if code and self.own in code.paths.split() else ()
        return _names(self.known, type(part).__name__) | {*declared}


def _is_shardable(spec: ModelSpec) -> bool:
    require_shardable(spec, "flag", "instead")
    return True


def _is_splittable(spec: ModelSpec) -> bool:
    shard.require_splittable(spec)
    return True


def _with_layer(layer: Layer) -> ModelSpec:
    return replace(MODEL, layers=(LAYER, layer))


_OUTSIDE = ("layers", "vision", "pooler", "ranking")
_LAYER_LEFT = "style residual_scale output_scale mixer_norm post_norm gated_input laurel altup"
PATHS = [
    Path(
        "attention in Triton",
        (LAYER,),
        lambda layer: fusable.fusable_attention(layer) is not None,
        (fusable._LAYER, fusable._ATTENTION),
        {
            "Layer": _LAYER_LEFT,
            "Norm": "kind bias learned",
            "Attention": "chunk qk_norm_whole qk_norm_by_head qk_norm_after_rope clip value_norm "
            "values_are_keys query_scale out_bias sinks always_causal gated output_gate "
            "gates_heads value_head_dim value_scale alibi",
        },
        apart=("feed_forward",),
    ),
    Path(
        "MLP in Triton",
        (LAYER,),
        lambda layer: fusable.fusable_mlp(layer) is not None,
        (fusable._LAYER, fusable._MLP),
        {
            "Layer": _LAYER_LEFT,
            "Norm": "kind bias learned",
            "Mlp": "gated bias clamp cutoff gate_scale out_scale xielu_values",
        },
        apart=("mixer",),
    ),
    Path(
        "native mixers",
        (LAYER, *(Layer(mixer, MLP, NORM) for mixer in MIXERS)),
        lambda layer: "mixer" in layer_graph._expandable(layer),
        (layer_graph._LAYER, layer_graph._MIXER),
        {
            "GatedDeltaNet": "rope",
            "KimiDeltaAttention": "rope",
            "Mamba": "rope",
            "Mamba2": "shares_group rope",
            "ShortConvolution": "rope",
        },
        apart=("feed_forward", "gated_input", "laurel", "altup"),
    ),
    Path(
        "native low-rank sums",
        (replace(LAYER, laurel=Laurel(8, NORM)),),
        lambda layer: "mixer" in layer_graph._expandable(layer),
        (layer_graph._LAYER, layer_graph._MIXER, layer_graph._LAUREL),
        apart=("feed_forward", "gated_input", "altup"),
    ),
    Path(
        "native inputs of layers",
        (Layer(NoMixer(), MLP, NORM, gated_input=GatedInput(16, "silu", NORM)),),
        lambda layer: "input" in layer_graph._expandable(layer),
        (layer_graph._LAYER, layer_graph._GATED_INPUT),
        apart=("mixer", "feed_forward", "laurel", "altup"),
    ),
    Path(
        "native MLP",
        (LAYER,),
        lambda layer: "ffn" in layer_graph._expandable(layer),
        (layer_graph._LAYER, layer_graph._NORM, layer_graph._MLP),
        apart=("mixer", "gated_input", "laurel", "altup"),
    ),
    Path(
        "native experts",
        (Layer(ATTENTION, MOE, NORM),),
        lambda layer: "ffn" in layer_graph._expandable(layer),
        (layer_graph._LAYER, layer_graph._NORM, layer_graph._MOE, layer_graph._ROUTER),
        {"Mlp": "cutoff gate_scale out_scale xielu_values"},
        apart=("mixer", "gated_input", "laurel", "altup", "shared"),
    ),
    Path(
        "native MLP and experts",
        (Layer(ATTENTION, MlpAndMoe(MLP, MOE, NORM), NORM),),
        lambda layer: "ffn" in layer_graph._expandable(layer),
        (layer_graph._LAYER, layer_graph._BOTH),
        {},
        apart=("mixer", "gated_input", "laurel", "altup", "mlp", "moe"),
    ),
    Path(
        "native head",
        (MODEL,),
        lambda spec: layer_graph.native_head(spec) is not None,
        (layer_graph._HEAD,),
        {"ModelSpec": "altup pooler embedding_size"},
        apart=_OUTSIDE,
    ),
    Path(
        "native embedding",
        (MODEL,),
        lambda spec: layer_graph.native_embedding(spec) is not None,
        (layer_graph._MODEL,),
        {"ModelSpec": "layer_inputs altup input pooler embedding_size"},
        apart=_OUTSIDE,
    ),
    Path(
        "experts in Triton",
        (MOE,),
        lambda moe: fusable.has_fusable_experts(moe, ACTIVATIONS),
        (fusable._EXPERTS,),
        {"Mlp": "gated cutoff gate_scale out_scale xielu_values", "Moe": "weighs_input"},
        apart=("router", "shared"),
    ),
    Path(
        "CUDA graphs",
        LAYERS,
        lambda layer: decode_graph.is_capturable(_with_layer(layer)),
        (decode_graph._KNOWN,),
        {"Attention": "chunk"},
    ),
    Path(
        "CUDA graphs of models",
        (FULL_MODEL,),
        decode_graph.is_capturable,
        (decode_graph._KNOWN,),
        apart=_OUTSIDE,
    ),
    Path(
        "shards",
        (*LAYERS, *OTHERS),
        lambda layer: _is_shardable(_with_layer(layer)),
        (SHARDABLE,),
        own="shared",
    ),
    Path("shards of models", (FULL_MODEL,), _is_shardable, (SHARDABLE,), apart=_OUTSIDE),
    Path(
        "pipelines",
        (FULL_MODEL,),
        _is_splittable,
        (shard._KNOWN,),
        apart=(*_OUTSIDE, "input"),
    ),
    Path(
        "planned bytes",
        (*LAYERS, *OTHERS, *WHOLE),
        lambda layer: not uncounted_layer_bytes(layer, 64, SHAPE),
        (COUNTED,),
        own="planned",
    ),
    Path(
        "planned bytes of models",
        (FULL_MODEL,),
        lambda spec: not uncounted_model_bytes(spec, SHAPE),
        (COUNTED,),
        apart=_OUTSIDE,
    ),
]


def _parts(spec: Any, apart: tuple[str, ...]) -> Iterator[tuple[Any, Callable[[Any], Any]]]:
    """A spec and each one in it, with what makes the whole again of a changed part."""
    yield spec, lambda part: part
    for each in fields(spec):
        value = getattr(spec, each.name)
        if is_dataclass(value) and each.name not in apart:
            for part, whole in _parts(value, apart):

                def outer(
                    part: Any, name: str = each.name, whole: Callable[[Any], Any] = whole
                ) -> Any:
                    return replace(spec, **{name: whole(part)})

                yield part, outer


def _changed(spec: Any, name: str) -> Any:
    """Another value of a field than its default: it need not make sense."""
    default = next(each.default for each in fields(spec) if each.name == name)
    if default is MISSING or default is None:
        return 3
    if isinstance(default, bool):
        return not default
    return ("other",) if isinstance(default, tuple | str) else default + 1


def _names(known: tuple[Mapping[str, str], ...], kind: str) -> set[str]:
    return {name for each in known for name in each.get(kind, "").split()}


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
def test_each_field_is_known_or_makes_the_path_step_aside(path: Path) -> None:
    for spec in path.specs:
        assert path.takes(spec)
        for part, whole in _parts(spec, path.apart):
            kind = type(part).__name__
            known = path.knows(part)
            for each in fields(part):
                if each.name in known:
                    continue
                value = {each.name: _changed(part, each.name)}
                taken = _takes(path, lambda p=part, w=whole, v=value: w(replace(p, **v)))
                assert not taken, f"{kind}.{each.name}"


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
def test_each_settled_field_is_known_or_left(path: Path) -> None:
    """One that came later is left until a path names it: the tests above and below."""
    for spec in path.specs:
        for part, _ in _parts(spec, path.apart):
            kind = type(part).__name__
            known, left = path.knows(part), _names((path.leaves,), kind)
            assert _names((SETTLED,), kind) <= known | left, kind
            assert left <= {each.name for each in fields(part)}, kind
            assert not known & left, kind


@pytest.mark.few(9)
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
def test_a_made_up_field_makes_every_path_step_aside(path: Path) -> None:
    for spec in path.specs:
        for part, whole in _parts(spec, path.apart):
            old = type(part)
            added = [("made_up", bool, field(default=False))]
            new = make_dataclass(old.__name__, added, bases=(old,), frozen=True)
            if hasattr(old, "code"):
                new.code = old.code
            values = {each.name: getattr(part, each.name) for each in fields(part)}
            assert path.takes(whole(new(**values)))
            assert not _takes(path, lambda w=whole, n=new, v=values: w(n(**v, made_up=True)))


def _takes(path: Path, make: Callable[[], Any]) -> bool:
    """Whether the path takes a spec; a spec may refuse what its only path cannot compute."""
    try:
        return path.takes(make())
    except Unsupported:
        return False


def test_all_specs_of_modules_and_layers_are_tried() -> None:
    found = {
        type(part)
        for spec in (*LAYERS, *OTHERS, *WHOLE, FULL_MODEL, JOINED)
        for part, _ in _parts(spec, ())
    }
    for file in filter(attrgetter("ispkg"), pkgutil.iter_modules(layers.__path__)):
        for each in vars(import_module(f"{layers.__name__}.{file.name}.spec")).values():
            is_spec = is_dataclass(each) and isinstance(each, type) and not isabstract(each)
            if is_spec and each not in (Slot, GridConvolution):
                assert each in found, each.__name__


@pytest.mark.parametrize("known", [table for path in PATHS for table in path.known])
def test_no_path_names_what_does_not_exist(known: Known) -> None:
    specs = (*LAYERS, *OTHERS, *WHOLE, FULL_MODEL, JOINED)
    classes = {type(part).__name__: type(part) for spec in specs for part, _ in _parts(spec, ())}
    for kind, names in known.items():
        assert set(names.split()) <= {each.name for each in fields(classes[kind])}, kind


def test_what_a_module_would_ignore_is_refused_with_its_name() -> None:
    with pytest.raises(Unsupported, match="'sinks'"):
        EncoderAttention(4, 2, 16, 0.25, ROPE, sinks=True)
    with pytest.raises(Unsupported, match="'output_gate'"):
        SharedAttention(replace(ATTENTION, output_gate="sigmoid"), 0)
    with pytest.raises(Unsupported, match="'residual_scale'"):
        replace(LAYER, style="parallel", residual_scale=0.5)
    with pytest.raises(Unsupported, match="'output_scale'"):
        replace(LAYER, style="gated", output_scale=True)
    with pytest.raises(Unsupported, match="'scale'"):
        Router(4, 2, scoring="sparsemixer", scale=2.5)


def test_a_new_field_of_an_operation_is_not_ignored() -> None:
    """Of those that executors match by their first fields."""
    new = [("is_log", bool, field(default=False))]
    kind = make_dataclass("ScaleEach", new, bases=(ScaleEach,), frozen=True)
    assert unknown_field(kind(1, "factors", 4), NATIVE) is None
    program = NativeProgram.__new__(NativeProgram)
    with pytest.raises(TypeError, match="the native library has no 'is_log' of ScaleEach"):
        program._native(kind(1, "factors", 4, is_log=True))


#: Fields of operations that count something: all other whole numbers are values.
COUNTS = frozenset(("size", "runs", "taps", "groups", "decays")) | {
    *("heads", "kv_heads", "key_heads", "first", "first_row", "first_channel"),
}


def test_each_value_of_an_operation_is_read_or_written() -> None:
    """Planned memory gives room that nobody reads any more to the next value."""
    kinds = operations.Operation.__subclasses__()
    assert len(kinds) > 30
    for kind in kinds:
        numbers = {each.name for each in fields(kind) if "int" in str(each.type)} - COUNTS
        values = {*f"{kind.READS} {kind.WRITES}".split()}
        assert numbers <= values <= {each.name for each in fields(kind)}, kind.__name__


def test_the_settled_fields_of_operations_exist() -> None:
    for name, known in SETTLED_OPERATIONS.items():
        names = {each.name for each in fields(getattr(operations, name))}
        assert {*known.split()} <= names, name


def test_a_module_that_is_cut_says_how() -> None:
    with pytest.raises(TypeError, match="OwnMixer has `shard_axes`, and no `with_shard`"):
        OwnMixer(64).with_shard([range(32)])


def test_a_module_that_is_cut_has_less_of_a_weight() -> None:
    kind = type("WholeMixer", (OwnMixer,), {"with_shard": lambda self, ranges: self})
    with pytest.raises(TypeError, match="WholeMixer cuts the columns of no weight"):
        shards._shared_columns(kind(64), 64)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (Code(activation_bytes="a:b"), "of no `module`"),
        (Code(module="a:b"), "neither `operations` nor"),
        (Code(operations="a:b", fields="size", paths="planned"), "a field 'rope', which .* not"),
        (Code(operations="a:b", fields="size rope step", paths="planned"), "no field 'step'"),
    ],
)
def test_half_a_code_is_an_error_by_the_name_of_the_kind(code: Code, message: str) -> None:
    kind = type("HalfMixer", (OwnMixer,), {"code": code})
    with pytest.raises(TypeError, match=f"HalfMixer .*{message}"):
        kind.own_code()
