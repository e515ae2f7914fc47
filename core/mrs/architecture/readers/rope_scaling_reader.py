"""Read how a config scales rotary frequencies for long contexts."""

from __future__ import annotations

from mrs.architecture.config import Config
from mrs.architecture.norm_rope import RopeScaling
from mrs.errors import NotReadable, Unsupported

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

    Factors are one for each of so many rotary `pairs`.
    """
    kind = values.values.get("rope_type", values.values.get("type", "default"))
    if kind in ("default", "mrope", None):
        return None
    if kind == "su":  # the first name of longrope
        kind = "longrope"
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
