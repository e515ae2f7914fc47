"""Find the keys of a GGUF file's architecture that no reader has looked up."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from mrs.architecture.gguf_config import KEYS, PATTERN, ROPE_NAMES
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.errors import Unsupported
from mrs.layers.mixer import Mixer
from mrs.layers.moe.spec import Moe, Router
from mrs.layers.rope.spec import QueryScale, Rope

#: Of sizes that tensors have anyway, of the file's layout, of how a model was trained, and of
#: images, which an mmproj file describes and which rotate by rows and columns.
_SAYS_NOTHING = (
    "attention.head_count_kv",
    "attention.value_length",
    "feed_forward_length",
    "expert_feed_forward_length",
    "expert_shared_feed_forward_length",
    "expert_shared_count",
    "dense_2_feat_in",
    "dense_2_feat_out",
    "dense_3_feat_in",
    "dense_3_feat_out",
    "tensor_data_layout",
    "rope.scaling.finetuned",
    "rope.dimension_sections",
    "n_deepstack_layers",
)
_TOKENIZER = "tokenizer."
#: Keys of tokenizers that are read, or that name tokens without a use here.
_OF_TOKENIZERS = re.compile(
    r"tokenizer\.(ggml\.(model|pre|tokens|token_type|token_type_count|scores|merges|add_bos_token"
    r"|add_eos_token|add_space_prefix|(bos|eos|eot|eom|unknown|padding|seperator|cls|mask|prefix"
    r"|suffix|middle|fim_[a-z]+)_token_id)"
    r"|chat_template(s|\.tool_use|\.rerank|\.default)?|huggingface\.json)"
)
#: The same for those of BERT and of T5, by the model that the file names.
_OF_MODELS = {
    "bert": re.compile(r"tokenizer\.ggml\.(add_sep_token|normalizer\.[a-z_]+)"),
    "t5": re.compile(
        r"tokenizer\.ggml\.(add_sep_token|remove_extra_whitespaces|precompiled_charsmap)"
    ),
}
#: What stands between two texts, if something ends them.
_MIDDLE, _ENDS = "tokenizer.ggml.add_sep_token", "tokenizer.ggml.add_eos_token"
_SCORING = {"softmax": 1, "sigmoid": 2, "sparsemixer": 1}


def unused_gguf_keys(
    metadata: Mapping[str, Any],
    prefix: str,
    read: Config,
    names: Mapping[str, str],
    spec: ModelSpec,
) -> list[str]:
    """The keys under `prefix` that shaped nothing of `spec`, which was made of the config `read`.

    `names` are the family's config keys and their names in GGUF files. Raises Unsupported for a
    key that asks for something else than the spec has.
    """
    looked_up = _looked_up(read, names)
    unused = []
    for key in metadata:
        name = key.removeprefix(prefix)
        if name == key or name in looked_up or _says_nothing(name, spec):
            continue
        value = metadata[key]
        if name in _AGREEING:
            _require(key, value, _AGREEING[name](spec), read.where)
        elif value is False or value not in (0, "", "none", [], ()):
            unused.append(key)
    return sorted(unused)


def unused_tokenizer_keys(metadata: Mapping[str, Any]) -> list[str]:
    """The keys of a GGUF file's tokenizer that are not read, without those that are off."""
    own = _OF_MODELS.get(str(metadata.get(f"{_TOKENIZER}ggml.model")))
    has_ends = bool(metadata.get(_ENDS))
    return sorted(
        key
        for key in metadata
        if key.startswith(_TOKENIZER)
        and not _OF_TOKENIZERS.fullmatch(key)
        and not (own and own.fullmatch(key))
        and not (has_ends and key == _MIDDLE)
        and metadata[key] not in (False, 0, "", None, [], ())
    )


def _looked_up(read: Config, names: Mapping[str, str]) -> set[str]:
    """The names, after the prefix, with a config key that a reader has looked up."""
    unread = {name for name, _ in read.unread()}
    known = [*KEYS.items(), *names.items(), ("layer_types", PATTERN)]
    known += [("rope_scaling", name) for name in ROPE_NAMES]
    return {name for key, name in known if key not in unread}


def _says_nothing(name: str, spec: ModelSpec) -> bool:
    mixers = list(_mixers(spec))
    if name == PATTERN:
        return not any(_window(mixer) for mixer in mixers)
    if name.startswith("rope."):
        return all(mixer.rope is None for mixer in mixers) or name in _SAYS_NOTHING
    return name in _SAYS_NOTHING


def _require(key: str, value: Any, agreeing: Collection[float], where: str) -> None:
    """Raises Unsupported unless a value, or each one of a list, is one of those `agreeing`."""
    values = value if isinstance(value, (list, tuple)) else [value]
    for each in values:
        is_number = isinstance(each, (int, float))
        if not is_number or not any(math.isclose(each, v, rel_tol=1e-5) for v in agreeing):
            have = " or ".join(sorted({f"{v:g}" for v in agreeing}))
            hint = f"models of this architecture are supported with {have}"
            raise Unsupported(f"{key} = {value!r} is not supported", where=where, hint=hint)


def _mixers(spec: ModelSpec) -> Iterator[Mixer]:
    return (layer.mixer for layer in spec.layers)


def _routers(spec: ModelSpec) -> Iterator[Router]:
    modules = (layer.feed_forward for layer in spec.layers)
    return (module.router for module in modules if isinstance(module, Moe))


def _window(mixer: Mixer) -> int | None:
    return getattr(mixer, "window", None)


def _of_windows(spec: ModelSpec) -> Sequence[Mixer]:
    """The mixers that have a window, or all if none has."""
    return [mixer for mixer in _mixers(spec) if _window(mixer)] or list(_mixers(spec))


def _head_dims(spec: ModelSpec) -> Collection[float]:
    return {getattr(mixer, "head_dim", 0) for mixer in _of_windows(spec)}


def _ropes(spec: ModelSpec) -> Sequence[Rope]:
    return [mixer.rope for mixer in _of_windows(spec) if mixer.rope is not None]


def _lengths(spec: ModelSpec) -> Collection[float]:
    """The lengths of the factors of queries by position."""
    scales = (getattr(mixer, "query_scale", None) for mixer in _mixers(spec))
    return {scale.length for scale in scales if isinstance(scale, QueryScale)}


def _only(*values: float) -> Callable[[ModelSpec], Collection[float]]:
    return lambda spec: values


#: GGUF key after the prefix -> its values that ask for nothing else than what a spec has. Without
#: such a key, llama.cpp has 0 for most of them.
_AGREEING: dict[str, Callable[[ModelSpec], Collection[float]]] = {
    "attention.causal": lambda spec: {not spec.attends_both_ways},
    "embedding_length_out": lambda spec: {0, spec.hidden_size},
    "attention.clamp_kqv": _only(0),
    "attention.max_alibi_bias": lambda spec: {
        8 if getattr(mixer, "alibi", ()) else 0 for mixer in _mixers(spec)
    },
    "attention.scale": lambda spec: {0, *(getattr(m, "scale", 0) for m in _mixers(spec))},
    "attention.output_scale": _only(0, 1),
    "attention.value_scale": _only(0, 1),
    "attention.temperature_scale": _only(0),
    "attention.temperature_length": lambda spec: {0, *_lengths(spec)},
    "attention.indexer.types": _only(1),
    "attention.rope_pattern": _only(1),
    "attention.shared_kv_layers": _only(0),
    "attention.key_length_swa": _head_dims,
    "attention.value_length_swa": _head_dims,
    "attn_logit_softcapping": lambda spec: {
        0, *(getattr(mixer, "softcap", 0) or 0 for mixer in _mixers(spec))
    },
    "router_logit_softcapping": _only(0),
    "final_logit_softcapping": lambda spec: {0, spec.logit_softcap or 0},
    "logit_scale": lambda spec: {0, spec.logit_scale},
    "embedding_scale": lambda spec: {0, spec.embedding_scale},
    "residual_scale": lambda spec: {0, *(layer.residual_scale for layer in spec.layers)},
    "swiglu_clamp_exp": _only(0),
    "swiglu_clamp_shexp": _only(0),
    "expert_gating_func": lambda spec: {0, *(_SCORING[r.scoring] for r in _routers(spec))},
    "expert_weights_norm": lambda spec: {r.norm_topk_prob for r in _routers(spec)} or {0},
    "expert_weights_scale": lambda spec: {0, *(router.scale for router in _routers(spec))},
    "expert_group_count": lambda spec: {0, *(router.n_group for router in _routers(spec))},
    "expert_group_used_count": lambda spec: {0, *(r.topk_group for r in _routers(spec))},
    "moe_every_n_layers": _only(0, 1),
    "rope.freq_base_swa": lambda spec: {0, *(rope.base for rope in _ropes(spec))},
    "rope.dimension_count_swa": lambda spec: {0, *(rope.dim for rope in _ropes(spec))},
}  # fmt: skip
