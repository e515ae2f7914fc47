"""The program of the subprocess that renders chat templates, and its Jinja environment.

Jinja's sandbox prevents templates from reaching Python, and `walls` prevent Python from reaching
anything else. Processor time is limited from outside (see `template_process`). Only this subprocess
imports Jinja.
"""

from __future__ import annotations

# What templates make Jinja and Python import is imported here: behind the walls it is too late.
import encodings.unicode_escape  # noqa: F401
import html  # noqa: F401
import json
import pprint  # noqa: F401
import signal
import sys
import textwrap  # noqa: F401
import unicodedata  # noqa: F401
from datetime import datetime
from functools import lru_cache
from types import TracebackType
from typing import Any, BinaryIO, NoReturn

import jinja2.debug  # noqa: F401, TID253
from jinja2 import Template, nodes  # noqa: TID253
from jinja2.exceptions import TemplateError  # noqa: TID253
from jinja2.ext import Extension, LoopControlExtension  # noqa: TID253
from jinja2.parser import Parser  # noqa: TID253
from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: TID253

from mrs.text.walls import raise_walls

_ERROR_CHARACTERS = 1000


class RaisedByTemplate(TemplateError):
    """A template refused the conversation by calling `raise_exception`."""


class TooMuchText(Exception):
    """A template output far more text than its input justifies."""


class _GenerationBlock(Extension):
    """`{% generation %}…{% endgeneration %}` marks replies for training; its body is rendered."""

    tags = {"generation"}  # noqa: RUF012 - as the base class has it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


def serve(max_bytes: int) -> None:
    """Answer requests from standard input on standard output, each a line of JSON.

    The first line names the walls that stand. The process's address space has `max_bytes`.
    """
    replies = sys.stdout.buffer
    _write(replies, {"walls": raise_walls(max_bytes)})
    for line in sys.stdin.buffer:
        request = json.loads(line)
        _end_after(request["seconds"])
        _write(replies, _reply(request))
        _end_after(0)


def _write(replies: BinaryIO, reply: dict[str, Any]) -> None:
    replies.write(json.dumps(reply).encode() + b"\n")
    replies.flush()


def _end_after(seconds: float) -> None:
    """Let the system end this process after `seconds` of processor time; 0 cancels that.

    The parent usually ends it earlier; this is for when the parent is gone.
    """
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)


def _reply(request: dict[str, Any]) -> dict[str, Any]:
    """`text`, or for an error its `stage`, `message` and the template's `line`."""
    stage = "compile"
    try:
        template = _compiled(request["source"])
        if request["variables"] is None:
            return {"text": ""}
        stage = "render"
        return {"text": _rendered(template, request)}
    except MemoryError:
        return {"stage": "memory"}
    except Exception as error:  # noqa: BLE001 - templates may raise anything
        failed = error
        if isinstance(error, RaisedByTemplate):
            stage = "refuse"
    message = str(failed)[:_ERROR_CHARACTERS] or type(failed).__name__
    line = getattr(failed, "lineno", None) or _template_line(failed.__traceback__)
    return {"stage": stage, "message": message, "line": line}


@lru_cache(maxsize=8)
def _compiled(source: str) -> Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, LoopControlExtension]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    del environment.globals["lipsum"]
    return environment.from_string(source)


def _rendered(template: Template, request: dict[str, Any]) -> str:
    now = datetime.fromisoformat(request["now"])
    variables = {"strftime_now": lambda text: now.strftime(text), **request["variables"]}
    pieces, characters = [], 0
    for piece in template.generate(variables):
        pieces.append(piece)
        characters += len(piece)
        if characters > request["max_characters"]:
            raise TooMuchText("the template outputs far more text than it was given")
    text = "".join(pieces)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise TemplateError("the template outputs a lone surrogate") from error
    return text


def _raise_exception(message: str) -> NoReturn:
    raise RaisedByTemplate(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON for templates of tool-calling models: without HTML escapes."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _template_line(traceback: TracebackType | None) -> int | None:
    """The innermost line of a template in a traceback that Jinja has translated."""
    line = None
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == "<template>":
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return line
