"""Hermes, Qwen2.5, Qwen3, SmolLM3, Granite 4: JSON between tags; also for any other template."""

from mrs.tools.call_format import CallFormat
from mrs.tools.json_arguments import JsonArguments

FORMAT = CallFormat(
    "hermes",
    lambda template: "<tool_call>" in template,
    JsonArguments(),
    before='<tool_call>\n{"name": "',
    between='", "arguments": ',
    after="}\n</tool_call>",
    separator="\n",
)
