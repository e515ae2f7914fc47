"""Fields that ask for replies of a given form; `form` is the one place where they take effect."""

from __future__ import annotations

from typing import Any

from msgspec import field

from mrs.server.errors import ApiError
from mrs.server.sampling_fields import SamplingFields


class StructureFields(SamplingFields, kw_only=True):
    """What the reply has to look like; `asked_grammar` is `grammar` in JSON."""

    response_format: dict[str, Any] | None = None
    asked_grammar: dict[str, Any] | None = field(default=None, name="grammar")

    def form(self) -> dict[str, Any]:
        is_text = (self.response_format or {}).get("type", "text") == "text"
        refuse("response_format", not is_text)
        refuse("grammar", self.asked_grammar is not None)
        return {}


def refuse(field: str, is_asked: bool) -> None:
    """Raises ApiError if a field that replies cannot follow is asked for."""
    if is_asked:
        raise ApiError(400, f"{field} is not supported: leave it out", field, "unsupported_value")
