"""The operations of a decoder layer, and of what is around the layers."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from math import sqrt

from mrs.architecture.model_spec import ModelSpec
from mrs.graph.attention_operations import attend
from mrs.graph.feed_forward_operations import (
    add_low_rank,
    own_input,
)
from mrs.graph.operations import (
    STREAM,
    Add,
    AddBias,
    Compute,
    Embed,
    Graph,
    Mix,
    Normalize,
    Project,
    Scale,
    Split,
    module_of,
)
from mrs.graph.state_operations import mamba2
from mrs.kernels.native_limits import ACTIVATIONS, MAX_TAPS, is_native
from mrs.layers.attention.spec import Attention, SharedAttention
from mrs.layers.cross_attention.spec import CrossAttention
from mrs.layers.empty.spec import NoFeedForward, NoMixer
from mrs.layers.joined_input.spec import JoinedInput
from mrs.layers.known_fields import Known, uses_only, with_fields
from mrs.layers.latent_attention.spec import IndexedAttention, LatentAttention
from mrs.layers.layer import Layer
from mrs.layers.layer_inputs.spec import GatedInput
from mrs.layers.mixer import FeedForward, Mixer, Module, loaded
from mrs.layers.mlp.spec import Mlp
from mrs.layers.moe.spec import MlpAndMoe, Moe, Router
from mrs.layers.parallel_mixers.spec import ParallelMixers

#: The fields that operations compute; what sets any other stays a module.
_NORM: Known = {"Norm": "eps kind bias learned"}
_LAYER: Known = {
    "Layer": "mixer feed_forward norm style residual_scale output_scale mixer_norm post_norm "
    "gated_input laurel altup",
}
_ATTENTION: Known = {
    **_NORM,
    "Attention": "heads kv_heads head_dim scale rope window chunk softcap qk_norm qk_norm_whole "
    "qk_norm_by_head qk_norm_after_rope clip value_norm values_are_keys query_scale qkv_bias "
    "out_bias sinks always_causal gated output_gate gates_heads value_head_dim value_scale alibi "
    "key_bias",
    "Rope": "dim base scaling interleaved sections interleaved_sections backwards",
    "RopeScaling": "kind values factors long_factors",
    "QueryScale": "beta length offset",
}
_MIXER: Known = {
    **_ATTENTION,
    "GatedDeltaNet": "key_heads value_heads key_dim value_dim kernel_tokens norm tiled beta_scale",
    "KimiDeltaAttention": "heads head_dim kernel_tokens norm",
    "Mamba2": "heads head_dim state_dim groups kernel_tokens norm least_step most_step bias "
    "out_bias convolution_bias norm_before_gate multipliers",
    "ShortConvolution": "channels kernel_tokens bias",
    "ParallelMixers": "attention state attention_in attention_out state_in state_out",
    "LatentAttention": "heads qk_nope_head_dim v_head_dim kv_lora_rank q_lora_rank scale rope "
    "norm bias query_scale",
    "IndexedAttention": "heads qk_nope_head_dim v_head_dim kv_lora_rank q_lora_rank scale rope "
    "norm bias indexer lends_choice",
    "Indexer": "heads head_dim top_k interleaved norm",
    "BorrowedChoiceAttention": "heads qk_nope_head_dim v_head_dim kv_lora_rank q_lora_rank scale "
    "rope norm bias top_k",
    "SharedAttention": "attention layer",
    "CrossAttention": "heads kv_heads head_dim scale norm rope input_norm bias",
    "Mamba": "channels state_dim step_rank kernel_tokens norm bias convolution_bias",
}
#: The final norm and the head.
_HEAD: Known = {
    **_NORM,
    "ModelSpec": "family vocab_size hidden_size layers norm tied_head context_tokens "
    "embedding_scale embedding_norm logit_scale logit_softcap head_bias vision extra_tokens "
    "file_layers layer_inputs input ranking",
}
#: The embedding, too; the layers are apart.
_MODEL: Known = {
    **_NORM,
    "ModelSpec": "family vocab_size hidden_size layers norm tied_head context_tokens "
    "embedding_scale embedding_norm logit_scale logit_softcap head_bias vision extra_tokens "
    "file_layers ranking",
    "JoinedInput": "norm feeds_normed chained",
}
#: A draft head has another input.
_HEAD_MODEL: Known = with_fields(_MODEL, ModelSpec="input")
_MLP: Known = {
    "Mlp": "intermediate activation gated bias clamp cutoff gate_scale out_scale xielu_values "
    "down_bias"
}
_MOE: Known = {
    "Mlp": "intermediate activation gated bias clamp",
    "Moe": "router expert shared shared_gate latent latent_bias weighs_input",
}
#: Its norm is an RMS norm with weights.
_ROUTER: Known = {
    "Norm": "eps",
    "Router": "experts top_k scoring bias score_correction_bias n_group topk_group "
    "group_score_experts norm_topk_prob scale jitter input_norm expert_scale",
}
_LAUREL: Known = {**_NORM, "Laurel": "rank norm"}
_GATED_INPUT: Known = {**_NORM, "GatedInput": "size activation norm"}
_BOTH: Known = {**_NORM, "MlpAndMoe": "mlp moe norm"}


def layer_graph(
    layer: Layer,
    hidden_size: int,
    *,
    native: Collection[str] = (),
    has_ranks: bool = False,
    is_inner: bool = False,
) -> Graph:
    """The operations of a layer of any style but `scaled`, which only towers have.

    The native library computes its modules that are `native` (`mixer` with what is in parallel,
    `ffn`, `input`), as far as it knows their operations, and torch all others. Of some kinds torch
    has a module in place of operations. With `has_ranks` results are sums over several processes.
    One that `is_inner` is a layer of several streams, whose own input is not added here.
    """
    graph = Graph(hidden_size, frozenset(native) & _expandable(layer), has_ranks=has_ranks)
    emit = _Emitter(graph, layer)
    if layer.is_parallel:
        emit.parallel()
    else:
        emit.mixer()
        emit.feed_forward()
    if not is_inner:
        if layer.gated_input is not None:
            graph.add(Add(STREAM, own_input(graph, layer.gated_input)))
        if layer.output_scale:
            graph.add(Scale(STREAM, "output_scale"))
    return graph


def native_graph(
    layer: Layer,
    hidden_size: int,
    is_packed: Callable[[str], bool],
    *,
    has_ranks: bool = False,
    is_inner: bool = False,
) -> Graph:
    """The operations of a layer, whose modules are native if all their matrices are packed."""
    native = set() if has_ranks else _expandable(layer)
    for each in layer_graph(layer, hidden_size, native=native).operations:
        if isinstance(each, Project | Mix):
            native -= {module_of(slot) for slot in each.slots if not is_packed(slot)}
    if layer.is_parallel and not {"mixer", "ffn"} <= native:
        native = set()
    return layer_graph(layer, hidden_size, native=native, has_ranks=has_ranks, is_inner=is_inner)


class _Emitter:
    """Adds the operations of one layer to its graph."""

    def __init__(self, graph: Graph, layer: Layer) -> None:
        self._graph, self._layer = graph, layer

    def parallel(self) -> None:
        graph, layer = self._graph, self._layer
        normed = self._maybe_normed("mixer.norm", layer.has_mixer_norm)
        mixed = self._mixed(normed)
        if layer.has_feed_forward_norm:
            normed = graph.normed(STREAM, "ffn.norm", layer.norm)
        graph.add(Add(STREAM, mixed))
        graph.add(Add(STREAM, self._transformed(normed)))

    def mixer(self) -> None:
        graph, layer = self._graph, self._layer
        if isinstance(layer.mixer, NoMixer):
            return
        normed = self._maybe_normed("mixer.norm", layer.has_mixer_norm)
        mixed = self._mixed(normed)
        if layer.laurel is None:
            self._add_to_stream(mixed, "mixer", layer.has_mixer_post_norm)
            return
        if layer.has_mixer_post_norm:
            graph.add(graph.norm(mixed, mixed, "mixer.post_norm", layer.added_norm))
        added = add_low_rank(graph, layer.laurel, normed)
        graph.add(Add(STREAM, mixed), Add(STREAM, added), Scale(STREAM, sqrt(0.5)))

    def feed_forward(self) -> None:
        layer = self._layer
        if isinstance(layer.feed_forward, NoFeedForward):
            return
        normed = self._maybe_normed("ffn.norm", layer.has_feed_forward_norm)
        out = self._transformed(normed)
        self._add_to_stream(out, "ffn", layer.has_feed_forward_post_norm)

    def _maybe_normed(self, slot: str, has_norm: bool) -> int:
        return self._graph.normed(STREAM, slot, self._layer.norm) if has_norm else STREAM

    def _add_to_stream(self, x: int, module: str, has_norm: bool) -> None:
        graph, layer, slot = self._graph, self._layer, f"{module}.post_norm"
        if layer.style == "post_sum":
            graph.add(Add(x, STREAM), graph.norm(x, STREAM, slot, layer.added_norm))
            return
        if has_norm:
            graph.add(graph.norm(x, x, slot, layer.added_norm))
        if layer.residual_scale != 1.0:
            graph.add(Scale(x, layer.residual_scale))
        if layer.style == "gated":
            graph.add(Scale(x, f"{module}.residual_gate", is_gate=True))
        graph.add(Add(STREAM, x))

    def _mixed(self, x: int) -> int:
        out = self._module(x, "mixer", self._layer.mixer)
        self._graph.sum_ranks(out)
        return out

    def _transformed(self, x: int) -> int:
        module = self._layer.feed_forward
        out = self._module(x, "ffn", module)
        if not module.adds_up:
            self._graph.sum_ranks(out)
        return out

    def _module(self, x: int, name: str, module: Module) -> int:
        """What a module makes of x (h): a new value (h)."""
        graph, code = self._graph, module.own_code()
        if name in graph.native or not code.activation_bytes:
            value: int = loaded(code.operations)(graph, module, x)
            return value
        out = graph.value(graph.widths[STREAM])
        graph.add(Compute(x, out, name))
        return out


def _expandable(layer: Layer) -> set[str]:
    """The modules that, with their part of the layer, can be expressed wholly as operations."""
    norms = [layer.norm, layer.added_norm]
    apart = ("mixer", "feed_forward", "norm", "post_norm", "gated_input", "laurel", "altup")
    if layer.style in ("gated", "scaled") or not uses_only(layer, _LAYER, apart=apart):
        return set()
    if not all(uses_only(each, _NORM) for each in norms):
        return set()
    modules = set()
    if _can_mix(layer.mixer) and (layer.laurel is None or uses_only(layer.laurel, _LAUREL)):
        modules.add("mixer")
    if layer.gated_input is not None and _is_native_input(layer.gated_input):
        modules.add("input")
    if _can_transform(layer.feed_forward):
        modules.add("ffn")
    return modules if not layer.is_parallel or {"mixer", "ffn"} <= modules else set()


def _is_native_input(gated: GatedInput) -> bool:
    """Whether all that a layer's own input adds is computed by operations."""
    return uses_only(gated, _GATED_INPUT) and gated.activation in ACTIVATIONS


def _is_mlp(module: object) -> bool:
    """Whether all that a module computes is in `transform`."""
    if not isinstance(module, Mlp) or not uses_only(module, _MLP):
        return False
    return _has_activation(module) or (module.activation == "xielu" and not module.gated)


def _is_mixture(module: object) -> bool:
    """Whether all that a module computes is in `mix`."""
    return (
        isinstance(module, Moe)
        and uses_only(module, _MOE, apart=("router", "shared"))
        and is_native_router(module.router)
        and _has_activation(module.expert)
        and (module.shared is None or _is_mlp(module.shared))
    )


def is_native_router(router: Router) -> bool:
    """Whether the native library can choose experts as this router does."""
    return uses_only(router, _ROUTER)


def _is_both(module: object) -> bool:
    """Whether all that a module computes is in `transform_and_mix`."""
    return (
        isinstance(module, MlpAndMoe)
        and uses_only(module, _BOTH, apart=("mlp", "moe"))
        and _is_mlp(module.mlp)
        and _is_mixture(module.moe)
    )


def _has_activation(mlp: Mlp) -> bool:
    is_clamped = mlp.gated and mlp.activation == "clamped_swiglu"
    return is_clamped or mlp.activation in ACTIVATIONS


def mix_in_parallel(graph: Graph, both: ParallelMixers, x: int) -> int:
    """The weighted sum of attention and a state space of x (h): a new value (h)."""
    out = attend(graph, both.attention, _scaled(graph, x, both.attention_in))
    state = mamba2(graph, both.state, _scaled(graph, x, both.state_in))
    graph.add(Scale(out, both.attention_out), Scale(state, both.state_out), Add(out, state))
    return out


def _scaled(graph: Graph, x: int, factor: float) -> int:
    """x, or a new value: x times the factor."""
    if factor == 1.0:
        return x
    out = graph.value(graph.widths[x])
    graph.add(Split(x, (out,)), Scale(out, factor))
    return out


def _can_mix(mixer: Mixer) -> bool:
    """Whether there are operations for all that a mixer computes."""
    if not mixer.own_code().operations or not uses_only(mixer, _MIXER, path="native"):
        return False
    parts = (mixer.attention, mixer.state) if isinstance(mixer, ParallelMixers) else (mixer,)
    return all(map(_has_native_sizes, parts))


def _has_native_sizes(mixer: Mixer) -> bool:
    """Whether the library's kernels know its heads, or as many taps as it has."""
    if isinstance(mixer, IndexedAttention) and not is_native(mixer.indexer.head_dim):
        return False
    if isinstance(mixer, LatentAttention):
        mixer = mixer.absorbed
    elif isinstance(mixer, SharedAttention):
        mixer = mixer.attention
    if isinstance(mixer, Attention):
        return is_native(mixer.key_dim, mixer.value_dim)
    if isinstance(mixer, CrossAttention):
        return is_native(mixer.head_dim)
    return getattr(mixer, "kernel_tokens", 0) <= MAX_TAPS


def _can_transform(module: FeedForward) -> bool:
    """Whether there are operations for all that a feed-forward module computes."""
    return _is_mlp(module) or _is_mixture(module) or _is_both(module)


def native_head(spec: ModelSpec) -> tuple[Graph, int] | None:
    """The final norm and the output head, and the value of the logits, if these are all."""
    others = ("layers", "embedding_norm", "vision", "layer_inputs", "input", "ranking")
    if spec.norm is None or not uses_only(spec, _HEAD, apart=others):
        return None
    graph = Graph(spec.hidden_size)
    graph.add(Normalize(STREAM, STREAM, "norm", spec.norm, spec.hidden_size))
    head = spec.head_weight.removesuffix(".weight")
    (logits,) = graph.projected(STREAM, {head: spec.vocab_size})
    if spec.head_bias:
        graph.add(AddBias(logits, "head.bias"))
    return graph, logits


def native_embedding(spec: ModelSpec) -> Graph | None:
    """The first hidden states of the tokens: rows of the embedding, or what a draft head reads.

    None if the native library does not compute them.
    """
    is_head = isinstance(spec.input, JoinedInput)
    known = _HEAD_MODEL if is_head else _MODEL
    if not uses_only(spec, known, apart=("layers", "vision", "ranking")):
        return None
    graph = Graph(spec.hidden_size)
    graph.add(Embed(STREAM, "embedding"))
    if spec.embedding_norm is not None:
        norm = replace(spec.embedding_norm, bias=False, learned=False)
        graph.add(Normalize(STREAM, STREAM, "", norm, spec.hidden_size))
    if spec.embedding_scale != 1.0:
        graph.add(Scale(STREAM, spec.embedding_scale))
    if isinstance(spec.input, JoinedInput):
        norm = spec.input.norm
        token = graph.normed(STREAM, "join.token_norm", norm)
        given = graph.given_value(spec.hidden_size, "states")
        state = graph.normed(given, "join.state_norm", norm)
        graph.add(Project(graph.joined(token, state), (STREAM,), ("join",)))
    return graph


def native_final_norm(spec: ModelSpec) -> Graph:
    """The stream after the final norm, for a model of which `native_head` is not None."""
    graph = Graph(spec.hidden_size)
    assert spec.norm is not None
    graph.add(Normalize(STREAM, STREAM, "norm", spec.norm, spec.hidden_size))
    return graph
