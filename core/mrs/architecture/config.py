"""Read a model's configuration, whoever wrote it: transformers 4, transformers 5 or a GGUF file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from mrs.architecture.layers import Activation
from mrs.errors import NotReadable, Unsupported

_MISSING = object()
#: No number of a config comes near it, and sums and products of such numbers stay finite.
_MOST = 2**62

_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "quick_gelu": "quick_gelu",
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
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _MOST:
            raise NotReadable(f"{key} = {value!r} is not a whole number", where=self.where)
        return value

    def number(self, key: str, default: Any = _MISSING) -> float:
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise NotReadable(f"{key} = {value!r} is not a number", where=self.where)
        if not abs(value) < _MOST:  # NaN is not below anything
            raise NotReadable(f"{key} = {value!r} is not a number", where=self.where)
        return float(value)

    def positive_number(self, key: str, default: Any = _MISSING, above: float = 0) -> float:
        value = self.number(key, default)
        if value <= above:
            raise NotReadable(f"{key} = {value} must be above {above}", where=self.where)
        return value

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

    def numbers(self, key: str, count: int, above: float = -math.inf) -> tuple[float, ...]:
        """A list of `count` numbers above `above`."""
        values = self.sequence(key)
        if len(values) != count:
            raise NotReadable(f"{key} = {values!r} has not {count} numbers", where=self.where)
        items = (Config({key: value}, self.where) for value in values)
        return tuple(item.positive_number(key, above=above) for item in items)

    def text(self, key: str, default: Any = _MISSING) -> str:
        value = self._get(key, default)
        if not isinstance(value, str):
            raise NotReadable(f"{key} = {value!r} is not a text", where=self.where)
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

    def head_dim(self, width: int, heads: int) -> int:
        """The part of `width` numbers that each of `heads` has; NotReadable where it is none."""
        if width < heads:
            raise NotReadable(f"{width} numbers are too few for {heads} heads", where=self.where)
        return width // heads

    def optional_number(self, key: str) -> float | None:
        """A number above 0, or None where the config has none."""
        return self.positive_number(key) if self.has(key) else None

    def activation(self, default: str = "silu", *keys: str) -> Activation:
        """The activation function under the first of `keys` (`hidden_act`) that is given."""
        name = next((self.values[k] for k in keys or ("hidden_act",) if self.has(k)), default)
        if not isinstance(name, str) or name not in _ACTIVATIONS:
            raise Unsupported(f"the activation {name!r} is not known", where=self.where)
        return _ACTIVATIONS[name]

    def refuse(self, key: str, *supported: object) -> None:
        """Raise Unsupported unless `key` is absent or has one of the `supported` values."""
        value = self.values.get(key)
        if value is not None and value not in supported:
            raise Unsupported(f"{key} = {value!r} is not supported", where=self.where)
