"""A Jinja environment in which a bad template can neither hang nor eat memory.

Jinja's sandbox keeps a template from reaching Python. On top of it, everything that makes much
out of little spends from a budget before it is done: passes through loops and macros, expressions
that are put out, and the operators, filters and methods that build text. A deadline covers what
takes long without growing. Import this module only where a template is rendered: it needs Jinja.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import wraps
from typing import Any, NoReturn

from jinja2 import nodes  # noqa: TID253
from jinja2.compiler import CodeGenerator, Frame  # noqa: TID253
from jinja2.exceptions import SecurityError, TemplateError  # noqa: TID253
from jinja2.ext import Extension, LoopControlExtension  # noqa: TID253
from jinja2.parser import Parser  # noqa: TID253
from jinja2.runtime import Context  # noqa: TID253
from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: TID253

_LEAST_CHARACTERS = 16 * 1024**2
_CHARACTERS_PER_INPUT_CHARACTER = 64
_SECONDS = 10.0
_STEP_CHARACTERS = 10
_WIDTH = re.compile(r"\d+")
_PADDING_METHODS = frozenset(("ljust", "rjust", "center", "zfill"))
_GROWING_FILTERS = frozenset(("indent", "center", "wordwrap", "batch", "slice", "tojson"))
_DEEP_FILTERS = frozenset(("tojson", "string", "pprint", "xmlattr", "urlencode", "sum", "format"))


class TooMuchWork(SecurityError):
    """A template went over what a sane one needs."""


class RaisedByTemplate(TemplateError):
    """A template refused the conversation by calling `raise_exception`."""


class _GenerationBlock(Extension):
    """`{% generation %}…{% endgeneration %}`, which marks a reply for training: shown as it is."""

    tags = {"generation"}  # noqa: RUF012 - as the base class has it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class _CodeGenerator(CodeGenerator):
    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.concatenate((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Renders as transformers renders chat templates, within a budget that `start` resets."""

    code_generator_class = _CodeGenerator
    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_GenerationBlock, LoopControlExtension],
            finalize=self._put_out,
        )
        self._left = _LEAST_CHARACTERS
        self._deadline = float("inf")
        self.filters["tojson"] = _to_json
        self.filters = {name: self._counted(name, f) for name, f in self.filters.items()}
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda text: datetime.now().strftime(text)
        del self.globals["lipsum"]

    def start(self, input_characters: int) -> None:
        """Give the next rendering its budget."""
        self._left = _LEAST_CHARACTERS + _CHARACTERS_PER_INPUT_CHARACTER * input_characters
        self._deadline = time.monotonic() + _SECONDS

    def spend(self, characters: int) -> None:
        """Take from the budget; TooMuchWork if too little of it is left, or it took too long."""
        self._left -= characters + _STEP_CHARACTERS
        if self._left < 0:
            raise TooMuchWork("the template produces far more text than it was given")
        if time.monotonic() > self._deadline:
            raise TooMuchWork(f"the template takes longer than {_SECONDS:.0f} s")

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for node in tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock)):
            assert isinstance(node, nodes.For | nodes.Macro | nodes.CallBlock)
            length = sum(len(data.data) for data in node.find_all(nodes.TemplateData))
            spend = nodes.EnvironmentAttribute("spend")
            call = nodes.Call(spend, [nodes.Const(length)], [], None, None)
            step = nodes.ExprStmt(call)
            for new in (spend, call, call.args[0], step):
                new.set_lineno(node.lineno).set_environment(self)
            node.body.insert(0, step)
        return tree

    def _put_out(self, value: Any) -> Any:
        self.spend(_weight(value))
        return value

    def concatenate(self, parts: Iterable[Any]) -> str:
        """The `~` operator."""
        parts = list(parts)
        self.spend(sum(map(_weight, parts)))
        return "".join(map(str, parts))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "+" and isinstance(left, str | list | tuple):
            self.spend(len(left) + _size(right))
        elif operator == "*":
            self.spend(max(_repeated(left, right), _repeated(right, left)))
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            self.spend(left.bit_length() * abs(right))
        elif operator == "%" and isinstance(left, str):
            self.spend(_format_size(left, right))
        return super().call_binop(context, operator, left, right)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        sandboxed = super().wrap_str_format(value)
        if sandboxed is None:
            return None

        def counted(*args: Any, **kwargs: Any) -> str:
            self.spend(_format_size(value.__self__, [*args, *kwargs.values()]))
            return sandboxed(*args, **kwargs)

        return counted

    def call(self, context: Context, function: Any, *args: Any, **kwargs: Any) -> Any:
        owner = getattr(function, "__self__", None)
        if isinstance(owner, str):
            args = tuple(_as_list(arg) for arg in args)
            self.spend(_method_size(owner, function.__name__, args))
        result = super().call(context, function, *args, **kwargs)
        if isinstance(result, range):
            self.spend(len(result))
        return result

    def _counted(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The filter `function`, spending before it works; its value comes after a context."""
        passed = 1 if hasattr(function, "jinja_pass_arg") else 0

        @wraps(function)
        def counted(*args: Any, **kwargs: Any) -> Any:
            before, (value, *others) = args[:passed], map(_as_list, args[passed:])
            self.spend(_filter_size(name, value, [*others, *kwargs.values()]))
            return function(*before, value, *others, **kwargs)

        return counted


def _raise_exception(message: str) -> NoReturn:
    raise RaisedByTemplate(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as a template of a tool-calling model wants it: nothing escaped for HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _size(value: Any) -> int:
    return len(value) if isinstance(value, str | list | tuple | dict) else 0


def _weight(value: Any) -> int:
    """About how many characters `str(value)` has; a part that is met twice counts twice."""
    if isinstance(value, str):
        return len(value)
    left, weight = [value], 0
    while left and weight < 2**40:
        item = left.pop()
        if isinstance(item, dict):
            left += (*item.keys(), *item.values())
        elif isinstance(item, list | tuple):
            left += item
        elif isinstance(item, int):
            weight += item.bit_length() // 3
        weight += len(item) if isinstance(item, str) else 4
        if len(left) > _LEAST_CHARACTERS:
            raise TooMuchWork("the template nests a value too often in itself")
    return weight


def _repeated(value: Any, times: Any) -> int:
    if not isinstance(times, int):
        return 0
    if isinstance(value, int):
        return value.bit_length() + times.bit_length()
    return _size(value) * max(times, 0)


def _format_size(pattern: str, values: Any) -> int:
    values = values if isinstance(values, list | tuple) else [values]
    widths = sum(int(width[:12]) for width in _WIDTH.findall(pattern))
    asked = sum(abs(value) for value in values if isinstance(value, int))
    stars = asked if "*" in pattern or "{" in pattern else 0
    return len(pattern) + widths + stars + sum(map(_weight, values))


def _method_size(text: str, name: str, args: tuple[Any, ...]) -> int:
    if name == "replace" and len(args) >= 2:
        return _replaced_size(text, args[0], args[1])
    if name == "join" and args:
        return _weight(args[0]) + len(text) * _size(args[0])
    if name == "translate" and args:
        return len(text) * _weight(args[0])
    numbers = sum(abs(arg) for arg in args if isinstance(arg, int))
    if name in _PADDING_METHODS:
        return len(text) + numbers
    return len(text) * (1 + numbers) if name == "expandtabs" else len(text)


def _replaced_size(text: str, old: Any, new: Any) -> int:
    if not (isinstance(old, str) and isinstance(new, str)):
        return len(text)
    return len(text) + text.count(old) * len(new)


def _filter_size(name: str, value: Any, others: list[Any]) -> int:
    size = _weight(value) if name in _DEEP_FILTERS else _size(value)
    if name == "replace" and len(others) >= 2 and isinstance(value, str):
        return _replaced_size(value, others[0], others[1])
    if name == "join":
        separator = others[0] if others and isinstance(others[0], str) else ""
        return _weight(value) + len(separator) * size
    if name == "format" and isinstance(value, str):
        return _format_size(value, others)
    if name in _GROWING_FILTERS:
        return (1 + size) * (1 + sum(abs(n) for n in others if isinstance(n, int)))
    return size


def _as_list(value: Any) -> Any:
    """Lazy sequences as lists, so that they can be counted before they are used."""
    return list(value) if hasattr(value, "__next__") else value
