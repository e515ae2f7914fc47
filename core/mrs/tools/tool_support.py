"""What a chat template has for tools: whether it describes them, and how calls are written."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import lru_cache

from mrs.errors import Unsupported
from mrs.text.template import ChatTemplate
from mrs.tools.call_format import CallFormat
from mrs.tools.derive.derive_format import derived_format
from mrs.tools.derive.probe import Unshown, shows_tools
from mrs.tools.known_formats import HERMES, harmony_format, unshown_format

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ToolSupport:
    """`shows_tools` says whether the template describes tools, `style` how calls are written."""

    shows_tools: bool
    style: CallFormat


def tool_support(template: ChatTemplate | None) -> ToolSupport:
    """What a template has for tools; found once for each.

    Raises Unsupported for a template that describes tools, but not in a known way how to call them.
    """
    if template is None:
        return ToolSupport(False, HERMES)
    return _support(template.source, template.name)


@lru_cache(maxsize=16)
def _support(source: str, name: str) -> ToolSupport:
    template = ChatTemplate(source, name=name)
    is_shown = shows_tools(template)
    style, reason = harmony_format(source), ""
    if style is None:
        try:
            style = derived_format(template)
        except Unshown as error:
            style, reason = unshown_format(source) if is_shown else None, str(error)
    if is_shown and style is None:
        raise Unsupported(
            f"the chat template describes tools but not how to call them: {reason}",
            where=name,
            hint="leave out the tools, or give another template with -c FILE",
        )
    if style is not None and is_shown:
        return ToolSupport(True, style)
    _logger.warning(
        "the chat template describes no tools: they are in the system message, and calls are %s",
        "as the template writes them" if style else "asked for in the form of Hermes",
    )
    return ToolSupport(False, style or HERMES)
