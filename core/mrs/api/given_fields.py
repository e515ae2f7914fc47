"""A `repr` that a person can read of values with many fields."""

from __future__ import annotations

from dataclasses import MISSING, Field, fields


class GivenFields:
    """A base of dataclasses made with `repr=False`: shows the fields that are not as by default."""

    def __repr__(self) -> str:
        shown = ", ".join(
            f"{field.name}={getattr(self, field.name)!r}"
            for field in fields(self)  # type: ignore[arg-type] # of its dataclasses
            if field.repr and not self._is_default(field)
        )
        return f"{type(self).__qualname__}({shown})"

    def _is_default(self, field: Field[object]) -> bool:
        value = getattr(self, field.name)
        if field.default_factory is not MISSING:
            return bool(value == field.default_factory())
        return field.default is not MISSING and bool(value == field.default)
