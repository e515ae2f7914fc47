"""Read a model's configuration, whoever wrote it: transformers 4, transformers 5 or a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mrs.errors import NotReadable, Unsupported
from mrs.families.spec import Activation, Rope, RopeScaling

_MISSING = object()

_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
}


class Config:
    """Typed access to a config mapping under transformers' names; errors name the key.

    `where` is what errors call the place: a file name or a model id.
    """

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values = values
        self.where = where

    def has(self, key: str) -> bool:
        return self.values.get(key) is not None

    def _get(self, key: str, default: object) -> Any:
        value = self.values.get(key)
        if value is not None:
            return value
        if default is _MISSING:
            raise NotReadable(
                f"the configuration lacks {key!r}",
                where=self.where,
                hint="the model folder is incomplete or of another kind",
            )
        return default

    def whole(self, key: str, default: Any = _MISSING) -> int:
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise NotReadable(f"{key} = {value!r} is not a whole number", where=self.where)
        return value

    def number(self, key: str, default: Any = _MISSING) -> float:
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise NotReadable(f"{key} = {value!r} is not a number", where=self.where)
        return float(value)

    def flag(self, key: str, default: Any = _MISSING) -> bool:
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise NotReadable(f"{key} = {value!r} is neither true nor false", where=self.where)
        return value

    def sequence(self, key: str, default: Any = _MISSING) -> Sequence[Any]:
        value = self._get(key, default)
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise NotReadable(f"{key} = {value!r} is not a list", where=self.where)
        return value

    def mapping(self, key: str) -> Mapping[str, Any]:
        value = self._get(key, {})
        if not isinstance(value, Mapping):
            raise NotReadable(f"{key} = {value!r} is not an object", where=self.where)
        return value

    def positive(self, key: str, default: Any = _MISSING) -> int:
        """A whole number of at least one: sizes and counts."""
        value = self.whole(key, default)
        if value < 1:
            raise NotReadable(f"{key} = {value} must be at least 1", where=self.where)
        return value

    def optional_number(self, key: str) -> float | None:
        return self.number(key) if self.has(key) else None

    def activation(self, default: str = "silu", *keys: str) -> Activation:
        """The activation function under the first of `keys` (`hidden_act`) that is given."""
        name = next((self.values[k] for k in keys or ("hidden_act",) if self.has(k)), default)
        if name not in _ACTIVATIONS:
            raise Unsupported(f"the activation {name!r} is not known", where=self.where)
        return _ACTIVATIONS[name]

    def refuse(self, key: str, *supported: object) -> None:
        """Raise Unsupported unless `key` is absent or has one of the `supported` values."""
        value = self.values.get(key)
        if value is not None and value not in supported:
            raise Unsupported(f"{key} = {value!r} is not supported", where=self.where)


def read_rope(
    config: Config,
    head_dim: int,
    *,
    default_base: float = 10000.0,
    layer_type: str | None = None,
    interleaved: bool = False,
) -> Rope:
    """The rotary embedding that a config describes.

    transformers 5 keeps everything in `rope_parameters`, per `layer_type` where layers differ;
    transformers 4 has `rope_theta` at the top level and the scaling rule in `rope_scaling`.
    """
    values = dict(config.mapping("rope_parameters")) or dict(config.mapping("rope_scaling"))
    if layer_type is not None and isinstance(values.get(layer_type), Mapping):
        values = dict(values[layer_type])
    nested = next((key for key, value in values.items() if isinstance(value, Mapping)), None)
    if nested is not None:
        raise Unsupported(
            f"rope parameters for {nested!r} alone are not supported", where=config.where
        )
    inner = Config(values, config.where)
    base = inner.number("rope_theta", config.number("rope_theta", default_base))
    part = inner.number("partial_rotary_factor", config.number("partial_rotary_factor", 1.0))
    dim = config.whole("rotary_dim", int(head_dim * part))
    if dim % 2 or not 0 < dim <= head_dim:
        raise NotReadable(
            f"rope cannot turn {dim} numbers of a head of {head_dim}", where=config.where
        )
    return Rope(dim, base, _read_scaling(inner, config, dim // 2), interleaved)


def _read_scaling(values: Config, config: Config, pairs: int) -> RopeScaling | None:
    kind = values.values.get("rope_type", values.values.get("type", "default"))
    if kind in ("default", None):
        return None
    if kind == "su":  # what longrope was called at first
        kind = "longrope"
    if kind not in ("linear", "llama3", "yarn", "dynamic", "longrope", "factors"):
        raise Unsupported(f"the rope scaling {kind!r} is not known", where=config.where)
    numbers = {
        name: float(value)
        for name, value in values.values.items()
        if isinstance(value, (int, float)) and name not in ("rope_theta", "partial_rotary_factor")
    }
    numbers.setdefault("max_position_embeddings", config.whole("max_position_embeddings", 2048))
    if config.has("original_max_position_embeddings"):
        numbers.setdefault(
            "original_max_position_embeddings", config.whole("original_max_position_embeddings")
        )
    if kind in ("linear", "llama3", "yarn", "dynamic"):
        values.number("factor")
    short = _factors(values, "short_factor", pairs)
    return RopeScaling(
        kind, tuple(sorted(numbers.items())), short, _factors(values, "long_factor", pairs)
    )


def _factors(values: Config, key: str, pairs: int) -> tuple[float, ...]:
    """One divisor a rotary pair, or none where the config has none."""
    factors = values.sequence(key, ())
    if factors and (len(factors) != pairs or not all(isinstance(f, (int, float)) for f in factors)):
        raise NotReadable(f"{key} is not a list of {pairs} numbers", where=values.where)
    return tuple(float(factor) for factor in factors)
