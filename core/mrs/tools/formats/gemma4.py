"""Gemma 4: like FunctionGemma, with other tokens."""

from mrs.tools.call_format import CallFormat
from mrs.tools.gemma_arguments import GemmaArguments

FORMAT = CallFormat(
    "gemma4",
    lambda template: "<|tool_call>" in template,
    GemmaArguments('<|"|>'),
    before="<|tool_call>call:",
    between="{",
    after="}<tool_call|>",
)
