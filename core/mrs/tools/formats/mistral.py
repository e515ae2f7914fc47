"""Mistral up to Small 3.1: a JSON list after a token."""

from mrs.tools.call_format import CallFormat
from mrs.tools.json_arguments import JsonArguments

FORMAT = CallFormat(
    "mistral",
    lambda template: "[TOOL_CALLS]" in template,
    JsonArguments(),
    begin="[TOOL_CALLS][",
    before='{"name": "',
    between='", "arguments": ',
    after="}",
    separator=", ",
    end="]",
)
