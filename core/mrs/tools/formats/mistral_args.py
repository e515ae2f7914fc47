"""Mistral from Small 3.2, Devstral, Magistral, Ministral 3: a name between two tokens."""

from mrs.tools.call_format import CallFormat
from mrs.tools.json_arguments import JsonArguments

FORMAT = CallFormat(
    "mistral_args",
    lambda template: "[TOOL_CALLS]" in template and "[ARGS]" in template,
    JsonArguments(),
    before="[TOOL_CALLS]",
    between="[ARGS]",
)
