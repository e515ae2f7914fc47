"""Fields that ask for replies of a given form; `form` is the one place where they take effect."""

from __future__ import annotations

from typing import Any

from msgspec import field

from mrs.grammar.request_fields import FORM_FIELDS
from mrs.request import Grammar
from mrs.server.http.errors import ApiError, errors_of
from mrs.server.schemas.sampling import SamplingFields


class StructureFields(SamplingFields, kw_only=True):
    """What the reply has to look like; one of these fields may be given.

    response_format     text, json_object, json_schema, regex or grammar, as OpenAI and others have
    grammar             of the type regex, json_schema, lark, gbnf or llguidance, or a text: GBNF
    guided_json, guided_regex, guided_choice, guided_grammar, structured_outputs   as in vLLM
    json_schema         as in llama.cpp
    """

    response_format: dict[str, Any] | None = None
    asked_grammar: dict[str, Any] | str | None = field(default=None, name="grammar")
    json_schema: dict[str, Any] | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    structured_outputs: dict[str, Any] | None = None

    @property
    def form_fields(self) -> dict[str, Any]:
        """The fields that give replies a form, with their values."""
        given = {
            name: self.asked_grammar if name == "grammar" else getattr(self, name)
            for name in FORM_FIELDS
        }
        return {name: value for name, value in given.items() if value not in (None, "")}

    @property
    def form_field(self) -> str:
        """The field that gives replies a form."""
        return next(iter(self.form_fields), "response_format")

    def check(self) -> None:
        super().check()
        given = list(self.form_fields)
        if len(given) > 1:
            raise ApiError(
                400,
                f"{given[-1]} and {given[0]} exclude each other: leave one of them out",
                given[-1],
                "invalid_value",
            )

    def form(self) -> dict[str, Any]:
        grammar: Grammar | None = None
        for name, value in self.form_fields.items():
            with errors_of(name):
                grammar = FORM_FIELDS[name](value)
        return {} if grammar is None else {"grammar": grammar}


def refuse(field: str, what: str, is_asked: bool | None) -> None:
    """Raises ApiError if `what`, of which `field` is a part, is asked for."""
    if is_asked:
        raise ApiError(400, f"{what} is not supported: leave it out", field, "unsupported_value")
