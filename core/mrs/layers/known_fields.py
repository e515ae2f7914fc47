"""What a path computes of a spec: the fields that it names, and every other one at its default.

A new field of a spec is then unknown to all paths that do not name it. A fast path leaves such a
layer to the operations one by one, which read every field; a path that is the only one refuses it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from typing import Any

from mrs.errors import Unsupported

#: The names of the fields that a path computes, with spaces between them, by the name of the spec's
#: class.
Known = Mapping[str, str]


def with_fields(known: Known, **more: str) -> Known:
    """`known`, and `more` fields of some classes."""
    return {**known, **{kind: f"{known.get(kind, '')} {names}" for kind, names in more.items()}}


def unknown_fields(
    spec: object, known: Known, apart: Collection[str] = (), path: str = ""
) -> Iterator[str]:
    """The settings of a frozen spec, and of the specs in its known fields, that are not `known`.

    A class that is not `known` may name its fields for a `path` itself; otherwise it is one such
    setting, by its name. Fields without a default are always set. The specs in the known fields
    `apart` are not looked at.
    """
    kind = type(spec).__name__
    declared = known.get(kind) or _declared(type(spec), path)
    if kind not in known and not declared:
        yield kind
        return
    yield from set_beyond(spec, declared or "")
    names = _split(declared or "")
    for each in fields(spec):  # type: ignore[arg-type]
        if each.name in names and each.name not in apart:
            value = getattr(spec, each.name)
            parts = value if isinstance(value, tuple) else (value,)
            for part in filter(is_dataclass, parts):
                yield from unknown_fields(part, known, path=path)


def set_beyond(value: object, names: str) -> Iterator[str]:
    """The fields of a dataclass that are not among these names and not at their defaults."""
    known = _split(names)
    for each in fields(value):  # type: ignore[arg-type]
        if each.name not in known and _is_set(each, getattr(value, each.name)):
            yield each.name


def uses_only(spec: object, known: Known, apart: Collection[str] = (), path: str = "") -> bool:
    """Whether nothing of a spec is unknown."""
    return next(unknown_fields(spec, known, apart, path), None) is None


def require_only(
    spec: object,
    known: Known,
    what: str,
    *,
    apart: Collection[str] = (),
    hint: str = "",
    path: str = "",
) -> None:
    """Raise Unsupported, with the field's name, if something of a spec is unknown to `what`."""
    for name in unknown_fields(spec, known, apart, path):
        raise Unsupported(f"{what} cannot compute {name!r}", hint=hint)


def _is_set(field: Field[Any], value: object) -> bool:
    if field.default is not MISSING:
        return bool(value != field.default)
    if field.default_factory is not MISSING:
        return bool(value != field.default_factory())
    return True


def _declared(kind: type, path: str) -> str | None:
    """The fields that the code of a class of specs takes into account, if it takes that `path`."""
    named = vars(kind).get("code")
    return named.fields if named is not None and path in named.paths.split() else None


@cache
def _split(names: str) -> frozenset[str]:
    return frozenset(names.split())


_ATTENTION = (
    "heads kv_heads head_dim scale rope window chunk softcap qk_norm qk_norm_whole qk_norm_by_head "
    "qk_norm_after_rope clip value_norm values_are_keys query_scale qkv_bias out_bias sinks "
    "always_causal gated output_gate gates_heads value_head_dim value_scale alibi"
)
_MLA = "heads qk_nope_head_dim v_head_dim kv_lora_rank q_lora_rank scale rope norm bias query_scale"
#: The fields that every path which computes operation by operation has been checked for: those of
#: the time when paths began to name them. A new field does not belong here: each path that computes
#: it names it, by `with_fields`.
SETTLED: Known = {
    "ModelSpec": "family vocab_size hidden_size layers norm tied_head context_tokens "
    "embedding_scale embedding_norm logit_scale logit_softcap head_bias vision extra_tokens "
    "file_layers layer_inputs altup input pooler ranking embedding_size",
    "FirstInput": "norm positions first_position token_types",
    "LayerInputs": "vocab_size size norm image_row",
    "Layer": "mixer feed_forward norm style residual_scale output_scale mixer_norm post_norm "
    "gated_input laurel altup",
    "GatedInput": "size activation norm",
    "Laurel": "rank norm",
    "AltUp": "streams active scaled norm",
    "Norm": "eps kind bias learned",
    "Rope": "dim base scaling interleaved sections interleaved_sections backwards",
    "RopeScaling": "kind values factors long_factors",
    "QueryScale": "beta length offset",
    "Attention": _ATTENTION,
    "EncoderAttention": _ATTENTION,
    "SharedAttention": "attention layer",
    "CrossAttention": "heads kv_heads head_dim scale norm rope",
    "LatentAttention": _MLA,
    "IndexedAttention": f"{_MLA} indexer lends_choice",
    "BorrowedChoiceAttention": f"{_MLA} top_k",
    "Indexer": "heads head_dim top_k interleaved norm",
    "GatedDeltaNet": "key_heads value_heads key_dim value_dim kernel_tokens norm tiled beta_scale "
    "rope",
    "KimiDeltaAttention": "heads head_dim kernel_tokens norm rope",
    "Mamba": "channels state_dim step_rank kernel_tokens norm bias convolution_bias rope",
    "Mamba2": "heads head_dim state_dim groups kernel_tokens norm least_step most_step bias "
    "out_bias convolution_bias norm_before_gate multipliers shares_group rope",
    "ShortConvolution": "channels kernel_tokens bias rope",
    "ParallelMixers": "attention state attention_in attention_out state_in state_out",
    "NoMixer": "rope",
    "Mlp": "intermediate activation gated bias clamp cutoff gate_scale out_scale xielu_values",
    "Router": "experts top_k scoring bias score_correction_bias n_group topk_group "
    "group_score_experts norm_topk_prob scale jitter input_norm expert_scale",
    "Moe": "router expert shared shared_gate latent latent_bias weighs_input",
    "MlpAndMoe": "mlp moe norm",
    "NoFeedForward": "",
}
