"""Read the rotary position embedding from a config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mrs.architecture.config import Config
from mrs.architecture.norm_rope import QueryScale, Rope, RopeScaling
from mrs.architecture.readers.rope_scaling_reader import read_scaling
from mrs.errors import NotReadable, Unsupported


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
