"""The OpenAPI document of the server, from the types of its routes, and a page that shows it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from html import escape
from typing import Any

import msgspec

from mrs.server.http.wire import Raw
from mrs.server.routes.route import Route

_JSON = "application/json"


def document(routes: Iterable[Route]) -> dict[str, Any]:
    """The document as a mapping, for JSON."""
    routes = list(routes)
    bodies = {
        each: None
        for route in routes
        for each in (route.style.error_type, route.request, route.response, route.events)
        if each not in (None, Raw)
    }
    references, schemas = msgspec.json.schema_components(
        list(bodies), ref_template="#/components/schemas/{name}"
    )
    by_type = dict(zip(bodies, references, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        path = paths.setdefault(route.template, {})
        path[route.method.lower()] = _operation(route, by_type)
    return {
        "openapi": "3.1.0",
        "info": {"title": "mrs", "version": "1", "description": "Serves a model over HTTP."},
        "paths": paths,
        "components": {
            "schemas": _readable(schemas),
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _readable(schema: Any) -> Any:
    """A schema whose arrays all say what their items are, as generators of clients want it.

    A tuple becomes an array of a length.
    """
    if isinstance(schema, list):
        return [_readable(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    readable = {name: _readable(each) for name, each in schema.items()}
    if isinstance(kinds := readable.pop("prefixItems", None), list):
        readable["items"] = (
            kinds[0] if all(each == kinds[0] for each in kinds) else {"anyOf": kinds}
        )
    if readable.get("type") == "array":
        readable.setdefault("items", {})
    return readable


def _operation(route: Route, by_type: dict[Any, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": f"{route.method.lower()}_{route.handle.__name__}",
        "summary": inspect.getdoc(route.handle) or "",
        "responses": {
            "200": {"description": "Success.", "content": _content(route, by_type)},
            "default": {
                "description": "An error.",
                "content": {_JSON: {"schema": by_type[route.style.error_type]}},
            },
        },
    }
    if route.request is not None:
        kinds = (_JSON, "multipart/form-data") if route.takes_form else (_JSON,)
        content = {kind: {"schema": by_type[route.request]} for kind in kinds}
        operation["requestBody"] = {"required": True, "content": content}
    if names := re.findall(r"{(\w+)}", route.template):
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in names
        ]
    return operation


def _content(route: Route, by_type: dict[Any, Any]) -> dict[str, Any]:
    if route.response is Raw:
        return {route.media_type: {"schema": {"type": "string"}}}
    content = {_JSON: {"schema": by_type[route.response]}}
    if route.events is not None:
        event = _event(by_type[route.events], ends_with_done=route.style.ends_with_done)
        content["text/event-stream"] = {"schema": event}
    return content


def _event(reference: Any, *, ends_with_done: bool) -> dict[str, Any]:
    """An event whose data are JSON; those of the last one may be `[DONE]`."""
    data = {"type": "string", "contentMediaType": _JSON, "contentSchema": reference}
    if ends_with_done:
        data = {"anyOf": [data, {"const": "[DONE]"}]}
    return {"type": "object", "required": ["data"], "properties": {"data": data}}


_STYLE = (
    "body{font:16px/1.5 system-ui;max-width:60rem;margin:2rem auto;padding:0 1rem;"
    "color-scheme:light dark}code{font-size:.9em}td{padding:.1rem 1rem .1rem 0;vertical-align:top}"
)


def page(document: dict[str, Any]) -> str:
    """The document as one page that needs nothing else."""
    operations = [
        _section(method.upper(), path, operation, document["components"]["schemas"])
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>mrs</title>'
        f"<style>{_STYLE}</style><h1>mrs</h1>"
        f'<p><a href="openapi.json">openapi.json</a></p>{"".join(operations)}</html>'
    )


def _section(method: str, path: str, operation: dict[str, Any], schemas: dict[str, Any]) -> str:
    text = f"<h2><code>{method} {escape(path)}</code></h2><p>{escape(operation['summary'])}</p>"
    if "requestBody" not in operation:
        return text
    name = operation["requestBody"]["content"][_JSON]["schema"]["$ref"].rpartition("/")[2]
    schema = schemas[name]
    rows = [
        f"<tr><td><code>{escape(field)}</code></td><td>{escape(_kind(value))}</td>"
        f"<td>{escape(value.get('description', ''))}</td></tr>"
        for field, value in schema["properties"].items()
    ]
    return f"{text}<pre>{escape(schema.get('description', ''))}</pre><table>{''.join(rows)}</table>"


def _kind(schema: dict[str, Any]) -> str:
    """A type in a few words."""
    if "anyOf" in schema:
        return " or ".join(kind for each in schema["anyOf"] if (kind := _kind(each)) != "null")
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    if "enum" in schema:
        return ", ".join(map(str, schema["enum"]))
    if schema.get("type") == "array" and isinstance(schema.get("items"), dict):
        return f"list of {_kind(schema['items'])}"
    limits = [
        f"{sign} {schema[key]}"
        for key, sign in (("minimum", ">="), ("exclusiveMinimum", ">"), ("maximum", "<="))
        if key in schema
    ]
    return " ".join([str(schema.get("type", "any")), *limits])
