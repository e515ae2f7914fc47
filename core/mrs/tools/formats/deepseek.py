"""DeepSeek V3.1: JSON after the name, between tokens."""

from mrs.tools.call_format import CallFormat
from mrs.tools.json_arguments import JsonArguments

_BAR, _SPACE = "\uff5c", "\u2581"


def token(name: str) -> str:
    """A control token: the words of its name are joined by U+2581, between U+FF5C."""
    return f"<{_BAR}{name.replace(' ', _SPACE)}{_BAR}>"


FORMAT = CallFormat(
    "deepseek",
    lambda template: token("tool calls begin") in template,
    JsonArguments(),
    begin=token("tool calls begin"),
    before=token("tool call begin"),
    between=token("tool sep"),
    after=token("tool call end"),
    end=token("tool calls end"),
)
