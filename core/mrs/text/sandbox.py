"""A Jinja environment in which a bad template can neither hang nor eat memory.

Jinja's sandbox keeps a template from reaching Python. On top of it, everything that makes much
out of little spends from a budget before it is done: passes through loops and macros, expressions
that are put out, and the operators, filters and methods that build text. A deadline covers what
takes long without growing. Import this module only where a template is rendered: it needs Jinja.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from functools import wraps
from typing import Any, NoReturn

from jinja2 import nodes  # noqa: TID253
from jinja2.compiler import CodeGenerator, Frame  # noqa: TID253
from jinja2.exceptions import TemplateError  # noqa: TID253
from jinja2.ext import Extension, LoopControlExtension  # noqa: TID253
from jinja2.parser import Parser  # noqa: TID253
from jinja2.runtime import Context  # noqa: TID253
from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: TID253

from mrs.text.meter import Meter


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
        self._meter = Meter()
        self.filters["tojson"] = _to_json
        self.filters = {name: self._counted(name, f) for name, f in self.filters.items()}
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda text: datetime.now().strftime(text)
        del self.globals["lipsum"]

    def start(self, input_characters: int) -> None:
        """Give the next rendering its budget."""
        self._meter = Meter(input_characters)

    def spend(self, characters: int) -> None:
        """Called by every pass through a loop and every call of a macro."""
        self._meter.spend(characters)

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
        self._meter.spend(self._meter.weight(value))
        return value

    def concatenate(self, parts: tuple[Any, ...]) -> str:
        """The `~` operator."""
        self._meter.spend(sum(map(self._meter.weight, parts)))
        return "".join(map(str, parts))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        self._meter.spend(self._meter.operator(operator, left, right))
        return super().call_binop(context, operator, left, right)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        sandboxed = super().wrap_str_format(value)
        if sandboxed is None:
            return None

        def counted(*args: Any, **kwargs: Any) -> str:
            values = [*args, *kwargs.values()]
            self._meter.spend(self._meter.formatted(value.__self__, values))
            return sandboxed(*args, **kwargs)

        return counted

    def call(self, context: Context, function: Any, *args: Any, **kwargs: Any) -> Any:
        owner = getattr(function, "__self__", None)
        if isinstance(owner, str):
            args = tuple(map(_as_list, args))
            values = [*args, *kwargs.values()]
            self._meter.spend(self._meter.method(owner, function.__name__, values))
        result = super().call(context, function, *args, **kwargs)
        if isinstance(result, range):
            self._meter.spend(len(result))
        return result

    def _counted(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The filter `function`, which spends before it works; its value comes after a context."""
        passed = 1 if hasattr(function, "jinja_pass_arg") else 0

        @wraps(function)
        def counted(*args: Any, **kwargs: Any) -> Any:
            before, (value, *others) = args[:passed], list(map(_as_list, args[passed:]))
            self._meter.spend(self._meter.filter(name, value, [*others, *kwargs.values()]))
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


def _as_list(value: Any) -> Any:
    """Lazy sequences as lists, so that they can be counted before they are used."""
    return list(value) if hasattr(value, "__next__") else value
