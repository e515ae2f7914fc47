"""Fields that ask for replies of a given form; `form` is the one place where they take effect."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from mrs.grammar.request_fields import grammar_of, grammar_of_response_format
from mrs.server.http.errors import ApiError, errors_of
from mrs.server.schemas.sampling import SamplingFields


class AskedGrammar(Struct, kw_only=True):
    """A grammar of the type regex, json_schema, lark or llguidance."""

    type: str
    value: str | dict[str, Any]


class StructureFields(SamplingFields, kw_only=True):
    """What the reply has to look like; `asked_grammar` is `grammar` in JSON."""

    response_format: dict[str, Any] | None = None
    asked_grammar: AskedGrammar | None = field(default=None, name="grammar")

    @property
    def form_field(self) -> str:
        """The field that gives replies a form."""
        return "response_format" if self.asked_grammar is None else "grammar"

    def check(self) -> None:
        super().check()
        if self.response_format is not None and self.asked_grammar is not None:
            raise ApiError(
                400,
                "grammar and response_format exclude each other: leave one of them out",
                "grammar",
                "invalid_value",
            )

    def form(self) -> dict[str, Any]:
        with errors_of(self.form_field):
            if self.asked_grammar is not None:
                return {"grammar": grammar_of(self.asked_grammar.type, self.asked_grammar.value)}
            if self.response_format is not None:
                return {"grammar": grammar_of_response_format(self.response_format)}
        return {}


def refuse(field: str, what: str, is_asked: bool | None) -> None:
    """Raises ApiError if `what`, of which `field` is a part, is asked for."""
    if is_asked:
        raise ApiError(400, f"{what} is not supported: leave it out", field, "unsupported_value")
