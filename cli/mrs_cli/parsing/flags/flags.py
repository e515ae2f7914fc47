"""What groups of flags have in common."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any


class Flags:
    """A group of flags: a dataclass with a field for each flag.

    All groups share this constructor, which takes values by name. Code that dataclasses generate
    for each class would be a tenth of the time in which the program starts.
    """

    def __init__(self, **values: Any) -> None:
        """Raises TypeError if a value has no field, or a field neither value nor default."""
        for field in fields(self):  # type: ignore[arg-type]
            value = values.pop(field.name, field.default)
            if value is MISSING:
                raise TypeError(f"{type(self).__name__} needs {field.name}")
            setattr(self, field.name, value)
        if values:
            raise TypeError(f"{type(self).__name__} has no {', '.join(values)}")
