"""Mistral 7B v0.3 and its time: like the later ones, with a space before the list."""

from dataclasses import replace

from mrs.tools.formats import mistral

FORMAT = replace(
    mistral.FORMAT,
    name="mistral_v3",
    is_in=lambda template: "[TOOL_CALLS] [" in template,
    begin="[TOOL_CALLS] [",
)
