"""Phi-4-mini: a JSON list between two tokens."""

from dataclasses import replace

from mrs.tools.formats import granite

FORMAT = replace(
    granite.FORMAT,
    name="phi4",
    is_in=lambda template: "<|/tool_call|>" in template or "<|/tool|>" in template,
    end="]<|/tool_call|>",
)
