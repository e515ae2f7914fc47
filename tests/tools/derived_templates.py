"""Every template with tools at hand, and the table of what is derived from each.

`python tests/tools/derived_templates.py` writes the table anew: a reply in the format of each
template, or why it is refused.
"""

from __future__ import annotations

import sys
from functools import cache
from importlib.resources import files
from pathlib import Path

import pytest
from stand_in_templates import BODIES, REFUSED, template_of
from tool_writer import processor_of

from mrs.errors import Unsupported
from mrs.text.template import ChatTemplate
from mrs.text.text_processor import TextProcessor
from mrs.tools.atoms import atoms_of, is_tag
from mrs.tools.call_format import CallFormat
from mrs.tools.derive.derive_format import derived_with
from mrs.tools.derive.probe import Probe, Underivable, probes_of
from mrs.tools.tool_support import ToolSupport, tool_support

TABLE = Path(__file__).with_name("derived_templates.txt")
_SHOWN = [("weather", {"city": "Rome", "days": 3, "dry": True, "in": ["a"]}), ("now", {})]


def _published() -> dict[str, str]:
    pytest.importorskip("trl", reason="trl is not installed: pip install --no-deps trl==1.16.0")
    folder = files("trl") / "chat_templates"
    return {
        f"trl {path.name.removesuffix('.jinja')}": path.read_text(encoding="utf-8")
        for path in sorted(folder.iterdir(), key=lambda path: path.name)
        if path.name.endswith(".jinja")
    }


TEMPLATES = {
    **_published(),
    **{f"form of {name}": template_of(body) for name, body in BODIES.items()},
    **{f"refused: {name}": template_of(body) for name, (body, _) in REFUSED.items()},
}


@cache
def support_of(name: str) -> ToolSupport | Unsupported:
    try:
        return tool_support(ChatTemplate(TEMPLATES[name], name=name))
    except Unsupported as error:
        return error


@cache
def derived() -> dict[str, CallFormat]:
    """The formats that were derived, by the names of their templates."""
    supports = {name: support_of(name) for name in TEMPLATES}
    return {
        name: support.style
        for name, support in supports.items()
        if isinstance(support, ToolSupport) and support.style.name == "derived"
    }


@cache
def probe_of(name: str) -> Probe:
    """The probe in the form of messages that the template of a derived format wants."""
    for probe in probes_of(ChatTemplate(TEMPLATES[name], name=name)):
        try:
            derived_with(probe)
        except (Underivable, ValueError):
            continue
        return probe
    raise AssertionError(name)


def listed() -> dict[str, str]:
    """What the table says of each template whose format is derived, without deriving any."""
    lines = TABLE.read_text(encoding="utf-8").splitlines()
    return {
        name: row
        for row, names in zip(lines[::2], lines[1::2], strict=True)
        if row[0] in "'\"" and "(known by name)" not in row
        for name in names.strip().split(", ")
    }


def tags_of(style: CallFormat) -> tuple[str, ...]:
    """The marks of a format that look like tokens."""
    found = {atom for text in style.marks for atom in atoms_of(text) if is_tag(atom)}
    return tuple(sorted(found))


def processor_for(name: str, *, with_tokens: bool = True) -> TextProcessor:
    """The text processor of a template, whose tokenizer may have the tags of calls as tokens."""
    return processor_of(TEMPLATES[name], tags_of(derived()[name]) if with_tokens else ())


def table() -> str:
    """What is derived, and below it the names of the templates."""
    names: dict[str, list[str]] = {}
    for name in TEMPLATES:
        names.setdefault(_row(name), []).append(name)
    return "".join(f"{row}\n    {', '.join(names[row])}\n" for row in names)


def _row(name: str) -> str:
    support = support_of(name)
    if isinstance(support, Unsupported):
        return str(support)
    style = support.style
    notes = [
        *(["known by name"] if style.name != "derived" else []),
        *([] if support.shows_tools else ["describes no tools"]),
        *([] if style.is_parallel else ["one call"]),
        *([f"loses {', '.join(style.lost)}"] if style.lost else []),
    ]
    shown = style.write(_SHOWN if style.is_parallel else _SHOWN[:1])
    return f"{shown!r}{''.join(f' ({note})' for note in notes)}"


if __name__ == "__main__":
    sys.stdout.write(table())
    TABLE.write_text(table(), encoding="utf-8")
