"""Read rotary position embedding from its usual config keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mrs.config.config import Config
from mrs.errors import NotReadable, Unsupported
from mrs.layers.rope.spec import QueryScale, Rope, RopeScaling


def read_rope(
    config: Config,
    head_dim: int,
    *,
    default_base: float = 10000.0,
    layer_type: str | None = None,
    interleaved: bool = False,
    whole: bool = False,
) -> Rope:
    """The rotary embedding of heads of `head_dim` values, of which it may rotate only some.

    With `whole` it rotates them all, as in MLA, whatever the config's share of a larger head.
    transformers 5 stores everything in `rope_parameters`, by `layer_type` if layers differ;
    transformers 4 stores `rope_theta` at the top level and the scaling in `rope_scaling`.
    """
    inner = _rope_config(config, layer_type)
    default_base = config.number("rope_theta", default_base)
    base = inner.positive_number("rope_theta", default_base, above=1)
    share = inner.number("partial_rotary_factor", config.number("partial_rotary_factor", 1.0))
    share = 1.0 if whole else share
    dim = config.integer("rotary_dim", int(head_dim * share))
    if dim % 2 or not 0 < dim <= head_dim:
        raise NotReadable(
            f"rope cannot rotate {dim} of the {head_dim} values of a head", where=config.where
        )
    if inner.values.get("rope_type") == "proportional":
        values = (("factor", inner.positive_number("factor", 1.0)), ("rotated_pairs", dim // 2))
        return Rope(head_dim, base, RopeScaling("proportional", values), interleaved)
    if inner.has("alpha"):  # Hunyuan's files call it dynamic, although the base is fixed
        if dim < 4:
            raise NotReadable("rope with alpha must rotate at least 4 values", where=config.where)
        base *= inner.positive_number("alpha") ** (dim / (dim - 2))
        return Rope(dim, base, None, interleaved)
    scaling = read_scaling(inner, config, dim // 2)
    sections = read_sections(inner, scaling, dim // 2)
    interleaved_sections = bool(sections) and inner.flag("mrope_interleaved", False)
    return Rope(dim, base, scaling, interleaved, sections, interleaved_sections)


def has_adjacent_pairs(config: Config) -> bool:
    """Whether the two values of a rotary pair are adjacent, in families where they usually are.

    In GGUF files with multimodal rope they never are: llama.cpp's converter takes them apart.
    """
    return config.flag("rope_interleave", not config.has("dimension_sections"))


def read_query_scale(config: Config) -> QueryScale | None:
    """The factor of queries by position that Mistral's newer models have in their rope."""
    inner = _rope_config(config, None)
    beta = inner.number("llama_4_scaling_beta", config.number("llama_4_scaling_beta", 0.0))
    if not beta:
        return None
    return QueryScale(beta, inner.positive_number("original_max_position_embeddings"))


def has_rope(config: Config) -> bool:
    """Whether the base of rope is not null, as some models without rope have it."""
    values = config.inner("rope_parameters").values or config.values
    return "rope_theta" not in values or values["rope_theta"] is not None


def with_default_rope(config: Config, parameters: Mapping[str, Any]) -> Config:
    """The config with these `rope_parameters`, unless it has any of its own."""
    if config.has("rope_parameters") or config.has("rope_scaling"):
        return config
    return config.changed({"rope_parameters": parameters})


def _rope_config(config: Config, layer_type: str | None) -> Config:
    inner = config.inner("rope_parameters" if config.mapping("rope_parameters") else "rope_scaling")
    if layer_type is not None and isinstance(inner.values.get(layer_type), Mapping):
        inner = inner.inner(layer_type)
    nested = next((key for key, v in inner.values.items() if isinstance(v, Mapping)), None)
    if nested is not None:
        raise Unsupported(
            f"separate rope parameters for {nested!r} are not supported", where=config.where
        )
    return inner


def read_sections(values: Config, scaling: RopeScaling | None, pairs: int) -> tuple[int, ...]:
    """`Rope.sections`: the numbers of pairs for time, rows and columns; () for ordinary rope."""
    if not values.has("mrope_section"):
        return ()
    given = values.sequence("mrope_section")
    sections = tuple(
        Config({"mrope_section": count}, values.where).positive("mrope_section") for count in given
    )
    if len(sections) != 3 or sum(sections) != pairs:
        raise NotReadable(
            f"mrope_section = {list(sections)} must be three numbers with the sum {pairs}",
            where=values.where,
        )
    if scaling is not None and scaling.depends_on_length:
        raise Unsupported(
            f"rope scaling {scaling.kind!r} is not supported with mrope_section",
            where=values.where,
        )
    return sections


#: What some kinds of scaling were called first.
_FIRST_NAMES: dict[str, Any] = {"su": "longrope", "deepseek_yarn": "yarn"}
#: Exclusive lower bounds of scaling parameters; formulas divide by these or by their logarithm.
_LOWER_BOUNDS = {
    "factor": 0,
    "beta_fast": 0,
    "beta_slow": 0,
    "original_max_position_embeddings": 1,
    "max_position_embeddings": 1,
}
#: The numbers among the rope parameters that some kind of scaling reads.
_PARAMETERS = (
    *("factor", "original_max_position_embeddings", "max_position_embeddings"),
    *("low_freq_factor", "high_freq_factor"),
    *("beta_fast", "beta_slow", "truncate", "attention_factor", "mscale", "mscale_all_dim"),
    *("short_mscale", "long_mscale", "yarn_log_multiplier"),
)


def read_scaling(values: Config, config: Config, pairs: int) -> RopeScaling | None:
    """The scaling that the rope parameters `values` name; None if it is none.

    There is one factor for each of the rotary `pairs`.
    """
    kind = values.values.get("rope_type", values.values.get("type", "default"))
    if kind in ("default", "mrope", None):
        return None
    kind = _FIRST_NAMES.get(kind, kind) if isinstance(kind, str) else kind
    if kind not in ("linear", "llama3", "yarn", "dynamic", "longrope", "factors"):
        raise Unsupported(f"the rope scaling {kind!r} is not known", where=config.where)
    if kind in ("linear", "llama3", "yarn", "dynamic"):
        values.positive_number("factor")
    parameters = _scaling_parameters(values, config)
    if kind == "dynamic" and pairs < 2:
        raise NotReadable("dynamic rope must rotate at least 4 values", where=config.where)
    short, long = _factors(values, "short_factor", pairs), _factors(values, "long_factor", pairs)
    if bool(short) != bool(long):
        raise NotReadable("longrope needs short_factor and long_factor", where=config.where)
    return RopeScaling(kind, tuple(sorted(parameters.items())), short, long)


def _scaling_parameters(values: Config, config: Config) -> dict[str, float]:
    """The numbers among the rope parameters, and the trained lengths that the config has."""
    given = {name: values.values.get(name) for name in _PARAMETERS}
    parameters = {
        name: float(value) if isinstance(value, bool) else values.number(name)
        for name, value in given.items()
        if value is not None
    }
    for name in ("max_position_embeddings", "original_max_position_embeddings"):
        if config.has(name):
            parameters.setdefault(name, config.positive(name))
    if values.has("long_factor") and config.has("original_max_position_embeddings"):
        # Phi 3 has it outside of rope, which counts if both are given.
        trained = config.positive("original_max_position_embeddings")
        parameters["original_max_position_embeddings"] = trained
    if config.has("truncate"):  # a default of the family: GGUF files do not store it
        parameters.setdefault("truncate", float(config.flag("truncate", True)))
    if parameters.get("yarn_log_multiplier"):
        # In GGUF files, which store one number for mscale and mscale_all_dim; their ratio counts.
        parameters["attention_factor"] = 1.0
    for name in _LOWER_BOUNDS.keys() & parameters.keys():
        values.positive_number(name, parameters[name], above=_LOWER_BOUNDS[name])
    return parameters


def _factors(values: Config, key: str, pairs: int) -> tuple[float, ...]:
    """One divisor per rotary pair; () if the config has none."""
    factors = values.sequence(key, ())
    if factors and len(factors) != pairs:
        raise NotReadable(f"{key} has {len(factors)} numbers, not {pairs}", where=values.where)
    return tuple(Config({key: factor}, values.where).positive_number(key) for factor in factors)
