"""Granite 3: a JSON list after a token."""

from mrs.tools.call_format import CallFormat
from mrs.tools.json_arguments import JsonArguments

FORMAT = CallFormat(
    "granite",
    lambda template: "<|tool_call|>" in template or "<|start_of_role|>available_tools" in template,
    JsonArguments(),
    begin="<|tool_call|>[",
    before='{"name": "',
    between='", "arguments": ',
    after="}",
    separator=", ",
    end="]",
)
