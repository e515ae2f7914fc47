"""The metadata with which a GGUF file describes a model: what `gguf_config.py` reads, inverted."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from mrs.architecture.gguf_config import KEYS, PATTERN
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.layers.attention.spec import Attention
from mrs.layers.empty.spec import NoFeedForward
from mrs.layers.latent_attention.spec import LatentAttention
from mrs.layers.mamba.spec import Mamba
from mrs.layers.mamba2.spec import Mamba2
from mrs.layers.mixer import FeedForward, Mixer
from mrs.layers.mlp.spec import Mlp
from mrs.layers.moe.spec import MlpAndMoe, Moe, Router
from mrs.layers.norm.spec import Norm
from mrs.layers.rope.spec import Rope
from mrs.layers.short_convolution.spec import ShortConvolution

#: llama.cpp's numbers of scoring functions.
_SCORING = {"softmax": 1, "sigmoid": 2}
_SCALING = "rope.scaling."


def metadata_of(
    spec: ModelSpec,
    config: Config,
    family_keys: Mapping[str, str],
    *,
    with_pattern: bool,
    stated: Collection[str] = (),
) -> dict[str, Any]:
    """The keys of a model after the prefix of its architecture.

    They come from the spec, and from the `config` it was read from where that has the key which
    GGUF files of the family have, too (`family_keys`). `with_pattern` says which layers have a
    window, which most architectures leave out; `stated` are keys without which readers assume a
    value.
    """
    mixers = [layer.mixer for layer in spec.layers]
    feed_forward = [layer.feed_forward for layer in spec.layers]
    values = dict(_copied(config, family_keys))
    values |= {
        "context_length": _context(spec, config),
        "embedding_length": spec.hidden_size,
        "block_count": len(spec.layers),
        **_feed_forward(feed_forward, config),
        **_experts(feed_forward, {*KEYS.values(), *family_keys.values()}),
        **_heads(mixers, spec.hidden_size, config),
        **_norm(spec.norm or spec.layers[0].norm),
        **_rope(mixers),
        **_states(mixers),
    }
    windows = [getattr(mixer, "window", None) for mixer in mixers]
    if any(windows) or "attention.sliding_window" in stated:
        values["attention.sliding_window"] = max(each or 0 for each in windows)
    if with_pattern:
        values[PATTERN] = [bool(each) for each in windows]
    if spec.logit_softcap is not None:
        values["final_logit_softcapping"] = spec.logit_softcap
    return values


def _copied(config: Config, family_keys: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    """What the config has under the very key that the reader of GGUF files looks up."""
    for key, name in family_keys.items():
        value = config.values.get(key)
        if key == "scoring_func" or value is None:
            continue
        if isinstance(value, (bool, int, float, str)) or _is_numbers(value):
            yield name, value


def _is_numbers(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(
        isinstance(each, (bool, int, float)) for each in value
    )


def _context(spec: ModelSpec, config: Config) -> int:
    """The trained length, which that of scaled rope does not change."""
    stated = config.values.get("max_position_embeddings")
    return stated if type(stated) is int else spec.context_tokens


def _feed_forward(modules: list[FeedForward], config: Config) -> dict[str, Any]:
    """The size of the MLP of all layers, or of each."""
    mlps = [each.mlp if isinstance(each, MlpAndMoe) else each for each in modules]
    sizes = [each.intermediate if isinstance(each, Mlp) else None for each in mlps]
    stated = config.values.get("intermediate_size")
    if all(isinstance(each, NoFeedForward) for each in modules):
        stated = 0
    known = {size for size in sizes if size}
    if len(known) == 1:
        return {"feed_forward_length": known.pop()}
    if known:
        return {"feed_forward_length": [size or 0 for size in sizes]}
    if type(stated) is int:
        return {"feed_forward_length": stated}
    return {"feed_forward_length": next((m.expert.intermediate for m in _moes(modules)), 0)}


def _moes(modules: list[FeedForward]) -> list[Moe]:
    inner = [each.moe if isinstance(each, MlpAndMoe) else each for each in modules]
    return [each for each in inner if isinstance(each, Moe)]


def _experts(modules: list[FeedForward], known: set[str]) -> dict[str, Any]:
    """What a file says of experts; `known` are the keys that files of the family may have."""
    moe = next(iter(_moes(modules)), None)
    if moe is None:
        return {}
    router = moe.router
    values: dict[str, Any] = {
        "expert_count": router.experts,
        "expert_used_count": router.top_k,
        "expert_feed_forward_length": moe.expert.intermediate,
    }
    if moe.shared is not None:
        wide, one = moe.shared.intermediate, moe.expert.intermediate
        values["expert_shared_feed_forward_length"] = wide
        if "expert_shared_count" in known and wide % one == 0:
            values["expert_shared_count"] = wide // one
    others = {name: value for name, value in _routing(router) if name in known}
    first = next(i for i, each in enumerate(modules) if not isinstance(each, Mlp))
    if first and "leading_dense_block_count" in known:
        values["leading_dense_block_count"] = first
    if router.scoring == "sigmoid":
        values["expert_gating_func"] = _SCORING["sigmoid"]
    return values | others


def _routing(router: Router) -> Iterator[tuple[str, Any]]:
    if router.scoring in _SCORING:
        yield "expert_gating_func", _SCORING[router.scoring]
    yield "expert_weights_norm", router.norm_topk_prob
    yield "expert_weights_scale", float(router.scale)
    yield "expert_group_count", router.n_group
    yield "expert_group_used_count", router.topk_group


def _heads(mixers: list[Mixer], hidden_size: int, config: Config) -> dict[str, Any]:
    """Numbers and sizes of heads; a size that follows from the others only if the config has it."""
    latent = next((each for each in mixers if isinstance(each, LatentAttention)), None)
    if latent is not None:
        return _latent_heads(latent)
    of_layers = [each if isinstance(each, Attention) else None for each in mixers]
    attention = [each for each in of_layers if each is not None]
    if not attention:
        return {"attention.head_count": 0, "attention.head_count_kv": 0}
    first = attention[0]
    keys = [0 if each is None else each.kv_heads for each in of_layers]
    values: dict[str, Any] = {
        "attention.head_count": first.heads,
        "attention.head_count_kv": keys if len(set(keys)) > 1 else keys[0],
    }
    if config.has("head_dim") or first.output_size != hidden_size:
        values |= {
            "attention.key_length": first.head_dim,
            "attention.value_length": first.value_dim,
        }
    return values


def _latent_heads(latent: LatentAttention) -> dict[str, Any]:
    """llama.cpp takes latent attention for one head of keys, which are latent vectors."""
    rotated = latent.rope.dim
    values = {
        "attention.head_count": latent.heads,
        "attention.head_count_kv": 1,
        "attention.key_length": latent.kv_lora_rank + rotated,
        "attention.value_length": latent.kv_lora_rank,
        "attention.key_length_mla": latent.qk_nope_head_dim + rotated,
        "attention.value_length_mla": latent.v_head_dim,
        "attention.kv_lora_rank": latent.kv_lora_rank,
    }
    if latent.q_lora_rank is not None:
        values["attention.q_lora_rank"] = latent.q_lora_rank
    return values


def _norm(norm: Norm) -> dict[str, Any]:
    name = "layer_norm_rms_epsilon" if norm.kind == "rms" else "layer_norm_epsilon"
    return {f"attention.{name}": float(norm.eps)}


def _rope(mixers: list[Mixer]) -> dict[str, Any]:
    """The rope of layers without a window, and the base of those with one if it is another."""
    pairs = [(each.rope, getattr(each, "window", None)) for each in mixers if each.rope]
    if not pairs:
        return {}
    rope = next((each for each, window in pairs if not window), pairs[0][0])
    values: dict[str, Any] = {
        "rope.freq_base": float(rope.base),
        "rope.dimension_count": rope.dim,
        **_scaling(rope),
    }
    bases = {each.base for each, window in pairs if window} - {rope.base}
    if len(bases) == 1:
        values["rope.freq_base_swa"] = float(bases.pop())
    if rope.sections:
        values["rope.dimension_sections"] = [*rope.sections, 0]
    return values


def _scaling(rope: Rope) -> dict[str, Any]:
    """How rope is scaled, apart from factors that are tensors."""
    scaling = rope.scaling
    if scaling is None or scaling.kind == "factors":
        return {}
    if scaling.kind == "linear":
        factor = float(scaling.get("factor", 1.0))
        return {f"{_SCALING}type": "linear", f"{_SCALING}factor": factor}
    trained = f"{_SCALING}original_context_length", int(scaling.trained_tokens)
    if scaling.kind == "longrope":
        return dict([trained, (f"{_SCALING}attn_factor", scaling.magnitude)])
    if scaling.kind != "yarn":
        return {}
    factor = float(scaling.get("factor", 1.0))
    values = dict([(f"{_SCALING}type", "yarn"), (f"{_SCALING}factor", factor), trained])
    for ours in ("beta_fast", "beta_slow"):
        if ours in dict(scaling.values):
            values[f"{_SCALING}yarn_{ours}"] = float(scaling.get(ours, 0))
    all_dims = scaling.get("mscale_all_dim", 0.0)
    if all_dims:
        values[f"{_SCALING}yarn_log_multiplier"] = 0.1 * all_dims
    elif factor > 1 and not math.isclose(
        share := scaling.magnitude / (0.1 * math.log(factor) + 1), 1.0
    ):
        values[f"{_SCALING}attn_factor"] = share
    return values


def _states(mixers: list[Mixer]) -> dict[str, Any]:
    """The sizes of recurrent states and of short convolutions."""
    for each in mixers:
        if isinstance(each, ShortConvolution):
            return {"shortconv.l_cache": each.kernel_tokens}
        if isinstance(each, Mamba2):
            return {
                "ssm.conv_kernel": each.kernel_tokens,
                "ssm.state_size": each.state_dim,
                "ssm.group_count": each.groups,
                "ssm.inner_size": each.values,
                "ssm.time_step_rank": each.heads,
            }
        if isinstance(each, Mamba):
            return {
                "ssm.conv_kernel": each.kernel_tokens,
                "ssm.state_size": each.state_dim,
                "ssm.inner_size": each.channels,
                "ssm.time_step_rank": each.step_rank,
            }
    return {}
