"""Qwen3-Coder, Qwen3.5: a function and its parameters in tags."""

from mrs.tools.call_format import CallFormat
from mrs.tools.tagged_arguments import TaggedArguments

FORMAT = CallFormat(
    "qwen3_coder",
    lambda template: "<tool_call>" in template and "<function=" in template,
    TaggedArguments(),
    before="<tool_call>\n<function=",
    between=">\n",
    after="</function>\n</tool_call>",
    separator="\n",
)
