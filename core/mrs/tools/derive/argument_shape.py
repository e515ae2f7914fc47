"""How a template writes the arguments of a call: as a JSON object, or one by one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from mrs.tools.atoms import common_end, common_start, removed_end
from mrs.tools.call_format import Arguments
from mrs.tools.derive.probe import KEYS, NAMES, ONE, VALUES, Given, Probe, Underivable
from mrs.tools.json_arguments import JsonArguments
from mrs.tools.keyed_arguments import KeyedArguments, ValueForm, kind_of
from mrs.tools.literals import Literals

_SEVERAL: Given = {KEYS[1]: VALUES[1], KEYS[0]: VALUES[0]}
_WORD = "zqword"
#: A value of each JSON type, after a string whose marks are known.
_TYPED: Given = {
    "zqkeya": VALUES[0],
    "zqkeyb": 4711,
    "zqkeyc": 2.5,
    "zqkeyd": True,
    "zqkeye": None,
    "zqkeyf": [_WORD, 7],
    "zqkeyg": {_WORD: _WORD, "zqflag": False},
    "zqkeyz": VALUES[1],
}
_SEPARATORS = ((", ", ": "), (",", ":"), (",", ": "), (", ", ":"))


@dataclass(frozen=True)
class ArgumentShape:
    """The form of arguments; those that are no JSON are from `before_key` to `end`."""

    arguments: Arguments
    before_key: str = ""
    end: str = ""

    def span(self, text: str, given: Given, start: int) -> tuple[int, int]:
        """Where the arguments are in a text, after `start`."""
        if isinstance(self.arguments, JsonArguments):
            return json_span(text, given, start)
        key, value = next(iter(given.items()))
        key_at = text.index(key, start)
        end = text.index(value, key_at) + len(value + self.end)
        return key_at - len(self.before_key), end


def argument_shape(probe: Probe) -> ArgumentShape:
    """Raises Underivable."""
    text = probe.first_call()
    if not probe.has_text_arguments and repr(ONE) in text:
        raise Underivable("it writes objects as Python does")
    try:
        json_span(text, ONE, 0)
    except Underivable:
        return _keyed_shape(probe, text)
    return ArgumentShape(_json_arguments(probe))


def json_span(text: str, given: Given, start: int) -> tuple[int, int]:
    """Where the JSON of arguments is in a text. Raises Underivable."""
    decoder = json.JSONDecoder()
    position = text.find("{", start)
    while position >= 0:
        try:
            value, end = decoder.raw_decode(text, position)
        except ValueError:
            value, end = None, position
        if value == given:
            return position, end
        position = text.find("{", position + 1)
    raise Underivable("its arguments are not in the text")


def _json_arguments(probe: Probe) -> JsonArguments:
    given = {**_SEVERAL, "zqlist": [1, 2]}
    text = probe.calls(given)
    start, end = json_span(text, given, 0)
    written = text[start:end]
    sorts_keys = written.index(KEYS[0]) < written.index(KEYS[1])
    for separators in _SEPARATORS:
        if json.dumps(given, separators=separators, sort_keys=sorts_keys) == written:
            return JsonArguments(separators, sorts_keys)
    return JsonArguments(None, sorts_keys)


def _keyed_shape(probe: Probe, text: str) -> ArgumentShape:
    """Marks are what differs between calls with no, one and two arguments."""
    nothing = _after_name(probe.calls({}))
    one = _after_name(text)
    before_key, after_value = one.partition(KEYS[0])[0], one.rpartition(VALUES[0])[2]
    between = common_start(before_key, nothing)
    without = nothing[len(between) :]
    closing = common_end(without, after_value)
    if without != closing:
        raise Underivable("a call without arguments has marks that others lack")
    start, end = before_key[len(between) :], removed_end(after_value, closing)
    several = probe.calls(_SEVERAL)
    first, second = sorted(zip(KEYS, VALUES, strict=True), key=lambda pair: several.find(pair[0]))
    joint = several[several.index(first[1]) + len(first[1]) : several.index(second[0])]
    close = common_start(joint, end)
    opening = common_end(start, joint[len(close) :])
    keyed = KeyedArguments(
        {},
        opening,
        removed_end(joint[len(close) :], opening),
        removed_end(start, opening),
        end[len(close) :],
        sorts_keys=first[0] == KEYS[0],
    )
    if not (opening or keyed.separator):
        raise Underivable("nothing is between its arguments")
    forms = _value_forms(probe, keyed)
    return ArgumentShape(replace(keyed, forms=forms), start, end)


def _after_name(text: str) -> str:
    return text.rpartition(NAMES[0])[2]


def _value_forms(probe: Probe, keyed: KeyedArguments) -> dict[str, ValueForm]:
    """The form of the values of each type."""
    text = probe.calls(_TYPED)
    joint = keyed.separator + keyed.open
    written = {}
    places = [(text.find(key), key) for key in _TYPED if key in text]
    for (at, key), (next_at, _) in zip(sorted(places), sorted(places)[1:], strict=False):
        between = text[at + len(key) : next_at]
        if not between.endswith(joint):
            raise Underivable("its values have no certain end")
        written[key] = removed_end(between, joint)
    string = _split(written["zqkeya"], VALUES[0])
    number = _split(written["zqkeyb"], "4711")
    quote = _quote(string, number, written.get("zqkeyf", ""))
    forms = {"string": ValueForm(*string, None)}
    if quote:
        literals = Literals(quote)
        forms["string"] = ValueForm(*number, literals)
    for key, value in _TYPED.items():
        kind = kind_of(value)
        if key in written and kind != "string":
            forms[kind] = _form(written[key], value, quote, keyed.sorts_keys)
    if forms["string"].literals is None and not forms["string"].close:
        raise Underivable("its texts have no certain end")
    return forms


def _split(text: str, value: str) -> tuple[str, str]:
    mid, separator, close = text.rpartition(value)
    if not separator:
        raise Underivable(f"a value is not in the text: {value}")
    return mid, close


def _quote(string: tuple[str, str], number: tuple[str, str], listed: str) -> str:
    """The quote around strings, which no other value has; empty if there is none."""
    quote = string[0].removeprefix(number[0])
    if number[0] + quote != string[0] or not quote or quote + number[1] != string[1]:
        return ""
    return quote if quote in "\"'" or quote + _WORD + quote in listed else ""


def _form(text: str, value: Any, quote: str, sorts_keys: bool) -> ValueForm:
    for spelled, literals in _spelled(value, quote, sorts_keys):
        if spelled in text:
            return ValueForm(*_split(text, spelled), literals)
    kind = kind_of(value)
    raise Underivable(f"values of the type {kind} are neither JSON nor Python: {text[:60]!r}")


def _spelled(value: Any, quote: str, sorts_keys: bool) -> Iterator[tuple[str, Literals]]:
    """The ways to write a value."""
    for item, colon in _SEPARATORS:
        spelled = json.dumps(value, separators=(item, colon), sort_keys=sorts_keys)
        yield spelled, Literals('"', item, colon)
    yield repr(value), Literals("'")
    for sort in (True, False):
        if quote:
            pairs = _between_quotes(value, quote, sort)
            yield pairs, Literals(quote, ",", ":", sorts_keys=sort)


def _between_quotes(value: Any, quote: str, sort: bool) -> str:
    """A value without white space and with no quotes around keys."""
    if isinstance(value, str):
        return quote + value + quote
    if isinstance(value, Mapping):
        pairs = sorted(value.items()) if sort else value.items()
        inner = (f"{key}:{_between_quotes(each, quote, sort)}" for key, each in pairs)
        return "{" + ",".join(inner) + "}"
    if isinstance(value, list):
        return "[" + ",".join(_between_quotes(each, quote, sort) for each in value) + "]"
    return json.dumps(value)
