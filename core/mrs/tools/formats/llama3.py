"""Llama 3.1 to 3.3: the whole reply is one JSON object."""

from mrs.tools.call_format import CallFormat
from mrs.tools.json_arguments import JsonArguments

FORMAT = CallFormat(
    "llama3",
    lambda template: "<|start_header_id|>" in template and '"parameters":' in template,
    JsonArguments(),
    before='{"name": "',
    between='", "parameters": ',
    after="}",
    is_parallel=False,
    is_at_start=True,
)
