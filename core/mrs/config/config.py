"""Typed access to a model's config, from transformers 4, transformers 5 or a GGUF file."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mrs.config.activations import ACTIVATIONS, Activation
from mrs.errors import NotReadable, Unsupported

_MISSING = object()
#: Bound on numbers in a config; sums and products of two of them are finite.
_MOST = 2**62


class _Values(dict[str, Any]):
    """The values of a config; a look-up by key notes it, after `prefix`, among those `asked`."""

    def __init__(self, values: Mapping[str, Any], asked: set[str], prefix: str) -> None:
        super().__init__(values)
        self._asked, self._prefix = asked, prefix

    def __getitem__(self, key: str) -> Any:
        self._asked.add(self._prefix + key)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self._asked.add(f"{self._prefix}{key}")
        return super().__contains__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self._asked.add(self._prefix + key)
        return super().get(key, default)


class Config:
    """A config mapping under transformers' names. Every getter checks the type of the value.

    A getter raises NotReadable, with the key, if the value is missing (and no default is given)
    or has a wrong type. `where` is the file name or model id that errors show. The config knows
    which of its keys nobody has looked up, and so do those made of it.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        where: str,
        asked: set[str] | None = None,
        prefix: str = "",
    ) -> None:
        self.where = where
        self._asked = set[str]() if asked is None else asked
        self._prefix = prefix
        self.values: Mapping[str, Any] = _Values(values, self._asked, prefix)

    def _same(self, values: Mapping[str, Any]) -> Config:
        return Config(values, self.where, self._asked, self._prefix)

    def changed(self, values: Mapping[str, Any]) -> Config:
        """The config with these values in place of its own."""
        return self._same({**self.values, **values})

    def without(self, *keys: str) -> Config:
        return self._same({key: v for key, v in self.values.items() if key not in keys})

    def renamed(self, names: Mapping[str, str]) -> Config:
        """The config with `names` for some of its keys. The last of equal keys counts."""
        self._asked.update(self._prefix + key for key in names)
        return self._same({names.get(key, key): v for key, v in self.values.items()})

    def inner(self, key: str) -> Config:
        """The object under `key`, empty if there is none."""
        prefix = f"{self._prefix}{key}."
        self._asked.add(prefix)
        return Config(self.mapping(key), self.where, self._asked, prefix)

    def unread(self) -> Iterator[tuple[str, Any]]:
        """(key, value) of what nobody has looked up; `object.key` inside an `inner` object."""
        for key, value in self.values.items():
            name = self._prefix + key
            if name not in self._asked:
                yield name, value
            elif f"{name}." in self._asked and isinstance(value, Mapping):
                yield from Config(value, self.where, self._asked, f"{name}.").unread()

    def has(self, key: str) -> bool:
        return self.values.get(key) is not None

    def spelling(self, *keys: str) -> str:
        """The first of `keys` that the config has; the last one if it has none."""
        return next(iter([key for key in keys if self.has(key)]), keys[-1])

    def _get(self, key: str, default: object) -> Any:
        value = self.values.get(key)
        if value is not None:
            return value
        if default is _MISSING:
            raise NotReadable(
                f"the configuration lacks {key!r}",
                where=self.where,
                hint="the model folder is incomplete, or its model is of another architecture",
            )
        return default

    def integer(self, key: str, default: Any = _MISSING) -> int:
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _MOST:
            raise NotReadable(f"{key} = {value!r} is not a non-negative integer", where=self.where)
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
        """A list of `count` numbers, each greater than `above`."""
        values = self.sequence(key)
        if len(values) != count:
            raise NotReadable(f"{key} = {values!r} must have {count} numbers", where=self.where)
        items = (Config({key: value}, self.where) for value in values)
        return tuple(item.positive_number(key, above=above) for item in items)

    def text(self, key: str, default: Any = _MISSING) -> str:
        value = self._get(key, default)
        if not isinstance(value, str):
            raise NotReadable(f"{key} = {value!r} is not a string", where=self.where)
        return value

    def mapping(self, key: str) -> Mapping[str, Any]:
        value = self._get(key, {})
        if not isinstance(value, Mapping):
            raise NotReadable(f"{key} = {value!r} is not an object", where=self.where)
        return value

    def positive(self, key: str, default: Any = _MISSING) -> int:
        """An integer of at least 1."""
        value = self.integer(key, default)
        if value < 1:
            raise NotReadable(f"{key} = {value} must be at least 1", where=self.where)
        return value

    def head_dim(self, width: int, heads: int) -> int:
        """`width // heads`; NotReadable if that is 0."""
        if width < heads:
            raise NotReadable(
                f"hidden size {width} is smaller than the number of heads {heads}",
                where=self.where,
            )
        return width // heads

    def optional_number(self, key: str) -> float | None:
        """A number above 0, or None if the config lacks the key."""
        return self.positive_number(key) if self.has(key) else None

    def activation(self, default: str = "silu", *keys: str) -> Activation:
        """The activation function under the first of `keys` (`hidden_act`) that the config has."""
        key = self.spelling(*keys or ("hidden_act",))
        name = self.values[key] if self.has(key) else default
        if not isinstance(name, str) or name not in ACTIVATIONS:
            raise Unsupported(f"the activation {name!r} is not known", where=self.where)
        return ACTIVATIONS[name]

    def allow_only(self, key: str, *supported: object) -> None:
        """Raise Unsupported if `key` has a value that is not one of `supported`."""
        value = self.values.get(key)
        if value is not None and value not in supported:
            raise Unsupported(f"{key} = {value!r} is not supported", where=self.where)

    def require_off(self, *keys: str) -> None:
        """Raise Unsupported if one of `keys` has a value other than false or 0."""
        for key in keys:
            self.allow_only(key, False)
