"""LFM2: a list of calls in Python between two tokens."""

from mrs.tools.call_format import CallFormat
from mrs.tools.python_arguments import PythonArguments

FORMAT = CallFormat(
    "lfm2",
    lambda template: "<|tool_call_start|>" in template or "<|tool_list_start|>" in template,
    PythonArguments(),
    begin="<|tool_call_start|>[",
    before="",
    between="(",
    after=")",
    separator=", ",
    end="]<|tool_call_end|>",
)
