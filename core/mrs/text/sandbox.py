"""The Jinja environment of chat templates, and what the process that renders them does.

Jinja's sandbox keeps a template from reaching Python. How long it takes and how much memory it
takes is bounded from outside: this module runs in a process of its own (see `template_process`),
the only one that imports Jinja.
"""

from __future__ import annotations

import json
import signal
import sys
from datetime import datetime
from functools import lru_cache
from types import TracebackType
from typing import Any, NoReturn

from jinja2 import Template, nodes  # noqa: TID253
from jinja2.exceptions import TemplateError  # noqa: TID253
from jinja2.ext import Extension, LoopControlExtension  # noqa: TID253
from jinja2.parser import Parser  # noqa: TID253
from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: TID253

_ERROR_CHARACTERS = 1000


class RaisedByTemplate(TemplateError):
    """A template refused the conversation by calling `raise_exception`."""


class TooMuchText(Exception):
    """A template put out more than a sane one does."""


class _GenerationBlock(Extension):
    """`{% generation %}…{% endgeneration %}`, which marks a reply for training: shown as it is."""

    tags = {"generation"}  # noqa: RUF012 - as the base class has it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


def serve(most_bytes: int) -> None:
    """Answer requests, a line of JSON each, from standard input on standard output until it ends.

    The process may take `most_bytes` of address space from now on.
    """
    _limit_memory(most_bytes)
    replies = sys.stdout.buffer
    replies.write(b"ready\n")
    replies.flush()
    for line in sys.stdin.buffer:
        request = json.loads(line)
        _end_after(request["seconds"])
        replies.write(json.dumps(_reply(request)).encode() + b"\n")
        replies.flush()
        _end_after(0)


def _limit_memory(most_bytes: int) -> None:
    try:
        import resource
    except ImportError:  # Windows
        return
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    if hard == resource.RLIM_INFINITY or hard > most_bytes:
        resource.setrlimit(resource.RLIMIT_AS, (most_bytes, hard))


def _end_after(seconds: float) -> None:
    """Let the system end this process then, whatever it does; 0 is never.

    Whoever asked ends it in time. This is for when nobody is there any more.
    """
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds)


def _reply(request: dict[str, Any]) -> dict[str, Any]:
    """`text`, or of what went wrong the `stage`, the `message` and the template's `line`."""
    stage = "compile"
    try:
        template = _compiled(request["source"])
        if request["variables"] is None:
            return {"text": ""}
        stage = "render"
        return {"text": _rendered(template, request)}
    except MemoryError:
        return {"stage": "memory"}
    except Exception as error:  # noqa: BLE001 - a template is somebody else's program
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
        if characters > request["most_characters"]:
            raise TooMuchText("the template builds far more text than it was given")
    text = "".join(pieces)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise TemplateError("the template puts out half a character") from error
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
    """JSON as a template of a tool-calling model wants it: nothing escaped for HTML."""
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
