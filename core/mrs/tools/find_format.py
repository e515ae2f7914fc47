"""Finds the format of calls that a chat template describes."""

from __future__ import annotations

from importlib import import_module

from mrs.tools.call_format import CallFormat

#: More special formats come before those whose marks they share.
_NAMES = (
    *("harmony", "qwen3_coder", "gemma4", "function_gemma", "lfm2", "deepseek_v3", "deepseek"),
    *("mistral_args", "mistral_v3", "mistral", "phi4", "granite", "hermes", "llama3"),
)


def find_format(template: str) -> CallFormat:
    """The format of a chat template; for one that has none, that of Hermes."""
    formats = {name: format_named(name) for name in _NAMES}
    return next((each for each in formats.values() if each.is_in(template)), formats["hermes"])


def format_named(name: str) -> CallFormat:
    found: CallFormat = import_module(f"mrs.tools.formats.{name}").FORMAT
    return found
