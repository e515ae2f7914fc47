"""A layer in one native call has the bits of its operations one after another, whatever it sets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from mrs.architecture.model_spec import ModelSpec
from mrs.graph.layer_graph import layer_graph
from mrs.graph.operations import Graph
from mrs.kernels.cpu.library import NativeLibrary
from mrs.layers.attention.spec import Attention, SharedAttention
from mrs.layers.empty.spec import NoFeedForward, NoMixer
from mrs.layers.gated_delta_net.spec import GatedDeltaNet
from mrs.layers.kda.spec import KimiDeltaAttention
from mrs.layers.latent_attention.spec import LatentAttention
from mrs.layers.laurel.spec import Laurel
from mrs.layers.layer import Layer
from mrs.layers.layer_inputs.spec import GatedInput, LayerInputs
from mrs.layers.mamba.spec import Mamba
from mrs.layers.mamba2.spec import Mamba2
from mrs.layers.mixer import Mixer
from mrs.layers.mlp.spec import Mlp
from mrs.layers.moe.spec import MlpAndMoe, Moe, Router
from mrs.layers.norm.spec import Norm
from mrs.layers.parallel_mixers.spec import ParallelMixers
from mrs.layers.rope.spec import QueryScale, Rope
from mrs.layers.short_convolution.spec import ShortConvolution
from mrs.model.batch import SequenceInput, forward_batch
from mrs.model.decoder import Decoder
from mrs.model.decoder_layer import DecoderLayer
from mrs.model.layer_stack import LayerStack
from mrs.model.model_weights import ModelWeights
from mrs.model.native_layers import NativePart
from mrs.plan.memory.cache_size import CacheSize
from support.packed_layers import HIDDEN, VOCABULARY, spec_of, weights_of

COUNT = 2
CPU = torch.device("cpu")
ATTENTION = Attention(4, 2, 32, 0.2, Rope(24, 1e4))
MLP, NORM = Mlp(256), Norm(1e-5)
PLAIN = Layer(ATTENTION, MLP, NORM)
HEAD_NORMS = replace(ATTENTION, qk_norm=Norm(1e-3))


_DELTA_NET, _MAMBA2 = GatedDeltaNet(2, 4, 24, 40, 4, NORM), Mamba2(4, 40, 24, 2, 4, NORM)
_MAMBA = Mamba(96, 24, 32, 4, Norm(1e-3))
STATES: dict[str, Mixer] = {
    "delta net": _DELTA_NET,
    "tiled heads": replace(_DELTA_NET, tiled=True),
    "stronger updates": replace(_DELTA_NET, beta_scale=1.5),
    "as many keys": GatedDeltaNet(3, 3, 32, 32, 2, NORM),
    "channel decays": KimiDeltaAttention(2, 32, 4, NORM),
    "state space": _MAMBA2,
    "norm before gate": replace(_MAMBA2, norm_before_gate=True, least_step=0.5, most_step=0.8),
    "no norm": replace(_MAMBA2, norm=None, convolution_bias=False),
    "factors of parts": replace(
        _MAMBA2, bias=True, out_bias=True, multipliers=(0.5, 1.5, 0.7, 1.2, 0.9)
    ),
    "decays of values": _MAMBA,
    "decays without norm": replace(_MAMBA, norm=None, bias=True, convolution_bias=False),
    "short convolution": ShortConvolution(96, 3),
    "biased convolution": ShortConvolution(96, 4, bias=True),
    "parallel mixers": ParallelMixers(ATTENTION, _MAMBA2, 0.5, 0.7, 1.3, 0.3),
}


LATENT = LatentAttention(4, 24, 32, 48, 64, 0.2, Rope(16, 1e4, interleaved=True), Norm(1e-3))

LATENTS = {
    "attention": LATENT,
    "attention of one rank": replace(LATENT, q_lora_rank=None),
    "attention with biases": replace(LATENT, bias=True, heads=3),
    "attention with layer norms": replace(LATENT, norm=Norm(1e-3, "layer", bias=True)),
    "attention of scaled queries": replace(LATENT, query_scale=QueryScale(0.3, 16, 2)),
}


def attending(**fields: Any) -> Layer:
    return replace(PLAIN, mixer=replace(ATTENTION, **fields))


def transforming(**fields: Any) -> Layer:
    return replace(PLAIN, feed_forward=replace(MLP, **fields))


ROUTER = Router(12, 3)
MIXTURE = Moe(ROUTER, Mlp(256))
GROUPS = {"scoring": "sigmoid", "score_correction_bias": True, "n_group": 4, "topk_group": 2}


def mixing(router: dict[str, Any] | None = None, **fields: Any) -> Layer:
    router = replace(ROUTER, **(router or {}))
    return replace(PLAIN, feed_forward=replace(MIXTURE, router=router, **fields))


LAYERS = {
    "plain": PLAIN,
    "interleaved": attending(rope=Rope(32, 1e4, interleaved=True)),
    "without rope": attending(rope=None),
    "window": attending(window=7),
    "chunks": attending(chunk=16),
    "softcap": attending(softcap=4.0),
    "head norms": attending(qk_norm=Norm(1e-3)),
    "norms of all heads": attending(qk_norm=Norm(1e-3), qk_norm_whole=True),
    "norms after rope": attending(qk_norm=Norm(1e-3), qk_norm_after_rope=True),
    "clip": attending(clip=0.5),
    "biases": attending(qkv_bias=True, out_bias=True),
    "sinks": attending(sinks=True),
    "small values": attending(value_head_dim=16, value_scale=0.7),
    "without gate": transforming(gated=False, activation="gelu_tanh", bias=True),
    "biased gate": transforming(bias=True, activation="quick_gelu"),
    "factors": transforming(gate_scale=0.3, out_scale=1.7),
    "sandwich": replace(PLAIN, style="sandwich", post_norm=Norm(1e-3)),
    "post": replace(PLAIN, style="post"),
    "post sum": replace(PLAIN, style="post_sum", mixer=HEAD_NORMS),
    "parallel": replace(PLAIN, style="parallel"),
    "parallel norms": replace(PLAIN, style="parallel_norms"),
    "no mixer norm": replace(PLAIN, mixer_norm=False),
    "clamped gate": transforming(activation="clamped_swiglu", clamp=0.5),
    "experts": mixing(),
    "experts alone": replace(mixing(), mixer=NoMixer()),
    "one expert": mixing({"top_k": 1}),
    "all experts": mixing({"top_k": 12, "norm_topk_prob": True, "scale": 1.5}),
    "groups of experts": mixing({**GROUPS, "group_score_experts": 2, "norm_topk_prob": True}),
    "groups by their best": mixing({**GROUPS, "score_correction_bias": False}),
    "biased experts": mixing(
        {"bias": True, "norm_topk_prob": True},
        expert=Mlp(256, "clamped_swiglu", bias=True, clamp=0.5),
    ),
    "scaled experts": mixing({"expert_scale": True, "scale": 0.3}),
    "experts without gate": mixing(expert=Mlp(256, "gelu_tanh", gated=False, bias=True)),
    "weighed inputs": mixing({"scoring": "sigmoid"}, weighs_input=True, shared=MLP),
    "shared expert": mixing(shared=replace(MLP, bias=True, out_scale=0.5)),
    "gated shared expert": mixing(shared=MLP, shared_gate=True),
    "experts one by one": mixing({"scoring": "sparsemixer", "jitter": 0.2, "bias": True}),
    "latent experts": mixing(latent=32, latent_bias=True, shared=MLP),
    "latent experts alone": mixing(latent=32),
    "normed scores": mixing({"input_norm": Norm(1e-3)}),
    "MLP and experts": replace(
        mixing(), feed_forward=MlpAndMoe(MLP, mixing({"expert_scale": True}).feed_forward, NORM)
    ),
    "parallel experts": replace(mixing(shared=MLP), style="parallel"),
    "sandwiched experts": replace(mixing(shared=MLP), style="sandwich", post_norm=NORM),
    "post experts": replace(mixing(shared=MLP, shared_gate=True), style="post"),
    "scaled": replace(PLAIN, residual_scale=0.3, output_scale=True),
    "layer norms": replace(PLAIN, norm=Norm(1e-3, "layer", bias=True)),
    "layer norms of heads": attending(qk_norm=Norm(1e-3, "layer"), qk_norm_by_head=True),
    "norms without weights": replace(PLAIN, norm=Norm(1e-3, learned=False)),
    "layer norms without weights": replace(PLAIN, norm=Norm(1e-3, "layer", learned=False)),
    "value norms": attending(value_norm=Norm(1e-3), values_are_keys=True, clip=0.5),
    "clip after norms": attending(clip=0.5, qk_norm=Norm(1e-3), qk_norm_whole=True),
    "gated queries": attending(gated=True, qkv_bias=True, qk_norm=Norm(1e-3)),
    "output gate": attending(output_gate="softplus", qkv_bias=True),
    "gated heads": attending(output_gate="sigmoid", gates_heads=True),
    "both gates": attending(output_gate="sigmoid", gated=True),
    "scaled queries": attending(query_scale=QueryScale(0.3, 16, 2), qk_norm=Norm(1e-3)),
    **{f"latent {name}": replace(PLAIN, mixer=mixer) for name, mixer in LATENTS.items()},
    "latent attention in parallel": replace(PLAIN, mixer=LATENT, style="parallel"),
    "slopes": attending(alibi=(0.5, 0.25, 0.125, 0.0625), clip=0.5, rope=None),
    "slopes and scaled queries": attending(alibi=(0.5,) * 4, query_scale=QueryScale(0.3, 16, 2)),
    "low-rank sum": replace(PLAIN, laurel=Laurel(32, Norm(1e-3))),
    "sandwiched low-rank sum": replace(PLAIN, laurel=Laurel(32, Norm(1e-3)), style="sandwich"),
    "gelu": transforming(activation="gelu"),
    "cut off": transforming(cutoff=0.7, gate_scale=0.5, activation="gelu_tanh"),
    "relu": transforming(activation="relu", gated=False),
    "squared relu": transforming(activation="relu2", gated=False),
    "xielu": transforming(activation="xielu", gated=False),
    "given xielu": transforming(
        activation="xielu", gated=False, xielu_values=(0.8, 0.3, 0.5, -1e-6)
    ),
    **{name: replace(PLAIN, mixer=mixer) for name, mixer in STATES.items()},
    "states alone": Layer(STATES["state space"], NoFeedForward(), NORM),
    "states after norms": replace(PLAIN, mixer=STATES["delta net"], style="post"),
    "states in parallel": replace(PLAIN, mixer=STATES["channel decays"], style="parallel"),
}


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operations between the stream and the stream pass 32 tokens at a time."""
    monkeypatch.setattr("mrs.graph.program.SCRATCH_BYTES", 36 * 4 * HIDDEN)


def decoder_of(spec: ModelSpec, weights: ModelWeights) -> Decoder:
    return Decoder(spec, weights, [CPU] * COUNT, torch.bfloat16)


def unexpanded(layer: Layer, hidden_size: int, is_packed: object, **options: Any) -> Graph:
    return layer_graph(layer, hidden_size, **options)


@torch.inference_mode()
def logits(decoder: Decoder) -> Iterator[Tensor]:
    """Of each token of a sequence that comes in pieces of several sizes."""
    cache = decoder.new_cache(160, chunk_tokens=80)
    for count in (70, 1, 3, 27, 16, 1):
        ids = [(5 * n + count) % VOCABULARY for n in range(count)]
        fed = SequenceInput(cache, ids, logits_rows=range(count))
        yield decoder.forward(forward_batch([fed]), [cache])


@pytest.mark.values
@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
def test_a_layer_has_the_bits_of_its_operations(library: NativeLibrary, layer: Layer) -> None:
    check(spec_of(layer, COUNT))


SHARED = SharedAttention(replace(HEAD_NORMS, window=7), 0)


@pytest.mark.parametrize(
    "mixer", [SHARED, replace(SHARED, attention=replace(ATTENTION, rope=None))]
)
def test_a_layer_attends_to_what_another_has_cached(library: NativeLibrary, mixer: Mixer) -> None:
    check(replace(spec_of(PLAIN, COUNT), layers=(PLAIN, replace(PLAIN, mixer=mixer))))


def test_a_layer_has_an_input_of_its_own(library: NativeLibrary) -> None:
    layer = replace(PLAIN, gated_input=GatedInput(32, "gelu_tanh", NORM), output_scale=True)
    inputs = LayerInputs(VOCABULARY, 32, NORM)
    check(replace(spec_of(layer, COUNT), layer_inputs=inputs))


def check(spec: ModelSpec) -> None:
    """The layers are native, and have the logits of torch's operations, bit for bit."""
    weights = weights_of(spec)
    native = decoder_of(spec, weights)
    assert list(native.stack.runs) == [0]
    assert all(isinstance(part, NativePart) for each in native.stack.layers for part in each._parts)
    with patch("mrs.model.decoder_layer.native_graph", unexpanded):
        by_torch = decoder_of(spec, weights)
    assert not by_torch.stack.runs
    for ours, expected in zip(logits(native), logits(by_torch), strict=True):
        assert torch.equal(ours, expected)


@pytest.mark.values
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("kind", STATES)
@torch.inference_mode()
def test_sequences_have_states_of_their_own(
    library: NativeLibrary, kind: str, threads: int
) -> None:
    """Several in one step, whose logits and states are those of each alone."""
    torch.set_num_threads(threads)
    spec = spec_of(replace(PLAIN, mixer=STATES[kind]), COUNT)
    decoder = decoder_of(spec, weights_of(spec))
    space = decoder.new_space(CacheSize(64, 4, 64))
    fed = [space.new() for _ in range(3)]
    alone = [decoder.new_cache(64, chunk_tokens=64) for _ in fed]
    for counts in ((3, 9, 1), (1, 1, 1), (2, 5, 1)):
        ids = [
            [(7 * n + count + own) % VOCABULARY for n in range(count)]
            for own, count in enumerate(counts)
        ]
        inputs = [
            SequenceInput(cache, own, logits_rows=range(len(own)))
            for cache, own in zip(fed, ids, strict=True)
        ]
        together = decoder.forward(forward_batch(inputs), fed)
        each = [
            decoder.forward(
                forward_batch([SequenceInput(cache, own, logits_rows=range(len(own)))]), [cache]
            )
            for cache, own in zip(alone, ids, strict=True)
        ]
        assert torch.equal(together, torch.cat(each))
    for one, other in zip(fed, alone, strict=True):
        for ours, expected in zip(one.layers, other.layers, strict=True):
            if ours.is_state:
                assert all(map(torch.equal, ours.tensors, expected.tensors))


def test_the_input_of_a_layer_is_not_changed(library: NativeLibrary) -> None:
    spec = spec_of(PLAIN, COUNT)
    decoder = decoder_of(spec, weights_of(spec))
    cache = decoder.new_cache(64, chunk_tokens=64)
    batch = forward_batch([SequenceInput(cache, [1, 2, 3])])
    x = torch.randn(3, HIDDEN)
    before = x.clone()
    decoder.stack.layers[0](x, batch, [cache.layers[0]])
    decoder.stack.runs[0](x, batch, [[each] for each in cache.layers])
    assert torch.equal(x, before)


def test_experts_on_the_cpu_of_a_layer_elsewhere(library: NativeLibrary) -> None:
    """They are not computed with the layer, which is where its router is."""
    layer = replace(mixing(), mixer=NoMixer())
    weights = weights_of(spec_of(layer, 1))
    vectors = {name: vector.to("meta") for name, vector in weights._vectors.items()}
    elsewhere = ModelWeights(weights._matrices, vectors)
    built = [DecoderLayer(layer, HIDDEN, 0, each.layer(0), None) for each in (weights, elsewhere)]
    assert built[0].native is not None
    assert built[1].native is None


def test_keys_of_another_layer_may_be_on_another_device(library: NativeLibrary) -> None:
    """There torch attends to them; layers on the device of those that they read are native."""
    layers = (PLAIN, PLAIN, *(replace(PLAIN, mixer=replace(SHARED, layer=n)) for n in (0, 1, 1)))
    spec = replace(spec_of(PLAIN, 1), layers=layers)
    here, there = torch.device("cpu"), torch.device("cpu", 0)
    devices = [here, there, here, there, here]
    stack = LayerStack(spec, weights_of(spec), devices, torch.float32)
    assert [cast(DecoderLayer, each).native is not None for each in stack.layers] == [
        *(True, True, True, True),
        False,
    ]
