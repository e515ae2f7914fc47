"""The properties of a tool's parameters, and lists of them in a grammar."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mrs.errors import Unsupported
from mrs.grammar.lark import LarkGrammar

#: Keywords that are enforced in JSON only.
_IN_JSON_ONLY = frozenset(
    (
        *("pattern", "minLength", "maxLength", "format", "minItems", "maxItems", "prefixItems"),
        *("contains", "uniqueItems", "minProperties", "maxProperties", "patternProperties"),
        *("propertyNames", "allOf", "not", "if"),
    )
)


def properties_of(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema of each property by name, in order, with the definitions that it may refer to."""
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        return {}
    shared = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
    return {
        name: {**_resolved(value, schema), **shared} if isinstance(value, Mapping) else value
        for name, value in properties.items()
    }


def items_of(schema: Mapping[str, Any]) -> Any:
    """The schema of the items of a list, with the definitions that it may refer to."""
    return properties_of({**schema, "properties": {"items": schema.get("items")}})["items"]


def require_enforced(schema: Mapping[str, Any], lark: LarkGrammar) -> None:
    """Raise Unsupported if a strict tool's schema has keywords that are enforced in JSON only."""
    if not lark.is_lenient and (unenforced := _IN_JSON_ONLY & schema.keys()):
        raise Unsupported(
            "the schema of a strict tool has keywords that cannot be enforced in the way in which "
            f"this model writes arguments: {', '.join(sorted(unenforced))}",
            hint="leave them out, or leave out strict",
        )


def _resolved(value: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema that `value` refers to within `root`, or `value`."""
    reference = value.get("$ref")
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return value
    target: Any = root
    for name in reference.removeprefix("#/").split("/"):
        target = target.get(name) if isinstance(target, Mapping) else None
    others = {name: each for name, each in value.items() if name != "$ref"}
    return {**target, **others} if isinstance(target, Mapping) else value


def is_required(schema: Mapping[str, Any], name: str) -> bool:
    required = schema.get("required")
    return isinstance(required, Sequence) and name in required


def optional_list(
    name: str,
    required: Sequence[bool],
    separator: str,
    lark: LarkGrammar,
    *,
    before: str = "",
    after: str = "",
) -> str:
    """The body of a rule: the rules `name_0`, `name_1`, … in order, with `separator` between.

    Those that are not required may be absent. If any is there, the list is between `before` and
    `after`.
    """
    count = len(required)
    for first in (True, False):
        kind, start = ("first", before) if first else ("rest", separator)
        for number, must in enumerate(required):
            skipped = "" if must else f" | {name}_{kind}{number + 1}"
            body = f"{start} {name}_{number} {name}_rest{number + 1}{skipped}"
            lark.rule(f"{name}_{kind}{number}", body)
        lark.rule(f"{name}_{kind}{count}", '""' if first else after or '""')
    return f"{name}_first0"


def in_order(schema: Mapping[str, Any], *, sorts_keys: bool) -> Mapping[str, Any]:
    """The schema with its properties in the order in which a template writes them."""
    properties = schema.get("properties")
    if not sorts_keys or not isinstance(properties, Mapping):
        return schema
    ordered = {
        name: in_order(value, sorts_keys=True) if isinstance(value, Mapping) else value
        for name, value in sorted(properties.items(), key=lambda pair: str(pair[0]).lower())
    }
    return {**schema, "properties": ordered}
