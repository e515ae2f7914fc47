"""DeepSeek V3 and R1: a fenced block of JSON after the name."""

from dataclasses import replace

from mrs.tools.formats import deepseek

FORMAT = replace(
    deepseek.FORMAT,
    name="deepseek_v3",
    is_in=lambda template: deepseek.FORMAT.is_in(template) and "```json" in template,
    before=f"{deepseek.token('tool call begin')}function{deepseek.token('tool sep')}",
    between="\n```json\n",
    after=f"\n```{deepseek.token('tool call end')}",
    separator="\n",
)
