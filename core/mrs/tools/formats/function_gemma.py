"""FunctionGemma: a name and arguments in Gemma's own form between two tokens."""

from mrs.tools.call_format import CallFormat
from mrs.tools.gemma_arguments import GemmaArguments

FORMAT = CallFormat(
    "function_gemma",
    lambda template: "<start_function_call>" in template,
    GemmaArguments("<escape>"),
    before="<start_function_call>call:",
    between="{",
    after="}<end_function_call>",
)
