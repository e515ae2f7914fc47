"""Arguments one by one: a key and a value between marks, as `<parameter=city>Rome</parameter>`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from mrs.grammar.lark import LarkGrammar
from mrs.tools.literals import Literals, alternatives, choices, spellings
from mrs.tools.properties import (
    in_order,
    is_required,
    optional_list,
    properties_of,
    require_enforced,
)

#: The types of JSON.
KINDS = ("string", "integer", "number", "boolean", "null", "array", "object")


@dataclass(frozen=True)
class ValueForm:
    """How values of a kind stand after their key: as they are if `literals` is None."""

    mid: str
    close: str
    literals: Literals | None


class _Incomplete(Exception):
    """The text ends within the arguments."""


class _Found(NamedTuple):
    """An argument: its key, the kinds that its marks allow, its text, and its value if read."""

    key: str
    kinds: frozenset[str]
    text: str
    value: Any


@dataclass(frozen=True)
class KeyedArguments:
    """`start`, items with `separator` between them, and `end`; nothing without items.

    An item is `open`, the key, and the value in the form of its JSON type in `forms`.
    """

    forms: Mapping[str, ValueForm]
    open: str
    separator: str
    start: str = ""
    end: str = ""
    sorts_keys: bool = False
    is_json = False

    @property
    def marks(self) -> tuple[str, ...]:
        around = [text for form in self.forms.values() for text in (form.mid, form.close)]
        quotes = [form.literals.quote for form in self.forms.values() if form.literals]
        return (self.start, self.open, self.separator, self.end, *around, *quotes)

    def rules(self, name: str, schema: Mapping[str, Any], lark: LarkGrammar) -> None:
        schema = in_order(schema, sorts_keys=self.sorts_keys)
        properties = properties_of(schema)
        for number, (key, value) in enumerate(properties.items()):
            body = self._value(f"{name}_{number}_v", value, lark)
            lark.rule(f"{name}_{number}", f"{lark.letters(key)} ({body})")
        required = [is_required(schema, key) for key in properties]
        # Marks in a row are one text: the lexer takes the longest that may follow.
        first, joint = lark.text(self.start + self.open), lark.text(self.separator + self.open)
        end = lark.text(self.end)
        lark.rule(name, optional_list(name, required, joint, lark, before=first, after=end))

    def _value(self, name: str, schema: Any, lark: LarkGrammar) -> str:
        """The body of a rule for what follows a key."""
        schema = schema if isinstance(schema, Mapping) else {}
        if (several := choices(schema)) is not None:
            return " | ".join(self._constant(each, lark) for each in several)
        if (others := alternatives(schema)) is not None:
            bodies = (self._value(f"{name}_{n}", each, lark) for n, each in enumerate(others))
            return " | ".join(f"({body})" for body in bodies)
        kind = schema.get("type", "object" if "properties" in schema else None)
        if kind not in self.forms:
            if self.forms["string"].literals is not None:
                return self._value(name, {"type": [*self.forms]}, lark)
            kind = "string"
        form = self.forms[kind]
        if form.literals is None:
            require_enforced(schema, lark)
            return f"{lark.text(form.mid)} {lark.until(form.close)}"
        if kind in ("boolean", "null"):
            body = spellings(kind, lark)
        else:
            body = form.literals.rule(name, schema, lark)
        return f"{lark.text(form.mid)} {body} {lark.text(form.close)}"

    def _constant(self, value: Any, lark: LarkGrammar) -> str:
        form = self.forms[kind_of(value)]
        if form.literals is None:
            return f"{lark.text(form.mid)} {lark.letters(str(value))} {lark.text(form.close)}"
        spelled = form.literals.rule("", {"const": value}, lark)
        return f"{lark.text(form.mid)} {spelled} {lark.text(form.close)}"

    def length(self, text: str, after: str) -> int | None:
        if after not in text:
            return None
        try:
            return max(end for _, end in self._items(text, after))
        except (_Incomplete, ValueError):
            return None

    def read(self, text: str, schema: Mapping[str, Any]) -> dict[str, Any]:
        properties = properties_of(schema)
        value_by_key = {}
        try:
            for item, _ in self._items(text, None):
                if item is not None:
                    value_by_key[item.key] = self._read(item, properties.get(item.key))
        except _Incomplete as error:
            raise ValueError("arguments without an end") from error
        return value_by_key

    def write(self, arguments: Mapping[str, Any]) -> str:
        if not arguments:
            return ""
        keys = sorted(arguments, key=str.lower) if self.sorts_keys else arguments
        items = (self.open + key + self._written(arguments[key]) for key in keys)
        return self.start + self.separator.join(items) + self.end

    def _written(self, value: Any) -> str:
        form = self.forms[kind_of(value)]
        text = str(value) if form.literals is None else form.literals.write(value)
        return form.mid + text + form.close

    def _read(self, item: _Found, schema: Any) -> Any:
        if item.value is not _UNREAD:
            return item.value
        if item.kinds == {"string"} or _is_text(schema):
            return item.text
        literals = next(each.literals for each in self.forms.values() if each.literals)
        try:
            value, end = literals.read(item.text.strip())
        except ValueError:
            return item.text
        return value if end == len(item.text.strip()) else item.text

    def _items(self, text: str, after: str | None) -> Iterator[tuple[_Found | None, int]]:
        """The arguments before `after`, or in the whole text, each with where it ends.

        Raises _Incomplete, and ValueError for another text.
        """
        if self._is_at(text, 0, "", after):
            yield None, 0
            return
        position = _after(text, 0, self.start)
        while True:
            key_at = _after(text, position, self.open)
            item, position = self._item(text, key_at, after)
            if self._is_at(text, position, self.end, after):
                yield item, position + len(self.end)
                return
            yield item, position
            position = _after(text, position, self.separator)

    def _item(self, text: str, key_at: int, after: str | None) -> tuple[_Found, int]:
        ends = {form.mid: text.find(form.mid, key_at) for form in self.forms.values()}
        candidates = [(end, -len(mid), mid) for mid, end in ends.items() if end >= 0]
        if not candidates:
            raise _Incomplete
        key_end, _, mid = min(candidates)
        start = key_end + len(mid)
        forms = {kind: form for kind, form in self.forms.items() if form.mid == mid}
        key, kinds = text[key_at:key_end], frozenset(forms)
        if all(form.literals for form in forms.values()):
            form = next(iter(forms.values()))
            assert form.literals is not None
            value, end = form.literals.read(text, start)
            return _Found(key, kinds, text[start:end], value), _after(text, end, form.close)
        raw = next(form for form in forms.values() if form.literals is None)
        end = self._raw_end(text, start, raw.close, after)
        return _Found(key, kinds, text[start:end], _UNREAD), end + len(raw.close)

    def _raw_end(self, text: str, start: int, close: str, after: str | None) -> int:
        """Where a text ends: at the first `close` after which the arguments go on or end."""
        end = text.find(close, start)
        while end >= 0:
            position = end + len(close)
            if self._is_at(text, position, self.end, after):
                return end
            following = self.separator + self.open
            rest = text[position : position + len(following)]
            if rest == following:
                return end
            if following.startswith(rest):
                raise _Incomplete
            end = text.find(close, end + 1)
        raise _Incomplete

    def _is_at(self, text: str, position: int, end: str, after: str | None) -> bool:
        """Whether the arguments end here, with `end`. Raises _Incomplete if that is not certain."""
        if after is None:
            return text[position:] == end
        rest = text[position : position + len(end + after)]
        if rest != end + after and (end + after).startswith(rest):
            raise _Incomplete
        return rest == end + after


_UNREAD = object()


def kind_of(value: Any) -> str:
    """The JSON type of a value."""
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}
    if value is None:
        return "null"
    return kinds.get(type(value), "object")


def _after(text: str, position: int, mark: str) -> int:
    rest = text[position : position + len(mark)]
    if rest == mark:
        return position + len(mark)
    if mark.startswith(rest):
        raise _Incomplete
    raise ValueError(f"no {mark}")


def _is_text(schema: Any) -> bool:
    """Whether the value is any string."""
    return isinstance(schema, Mapping) and schema.get("type") == "string" and "enum" not in schema
