"""The sampling settings of a chat: set by name, listed, saved and loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, fields, replace
from difflib import get_close_matches
from typing import Any, get_args

from mrs.errors import UsageError
from mrs.request import Effort, Sampling
from mrs_cli.parsing.setting_kinds import (
    NUMBERS,
    BiasesSetting,
    ChoiceSetting,
    SettingKind,
    TextSetting,
    TextsSetting,
)

DEFAULT = "default"
#: Where a setting was chosen, if not by a flag.
CHAT, SAVED = "\\set", "saved chat"
#: Fields of `Sampling` that a chat may set.
KINDS: dict[str, SettingKind] = {
    **NUMBERS,
    "stop": TextsSetting(),
    "dry_sequence_breakers": TextsSetting(),
    "logit_bias": BiasesSetting(),
    "reasoning_budget_message": TextSetting(),
    "reasoning_effort": ChoiceSetting(get_args(Effort)),
}


def setting_names() -> list[str]:
    """Every setting, spelled like its flag."""
    return [_spelled(field) for field in _settable()]


def is_setting(name: str) -> bool:
    return any(_key(field.name) == _key(name) for field in _settable())


def completed(
    sampling: Sampling, suggested: Mapping[str, float], chosen_by: Mapping[str, str]
) -> Sampling:
    """`sampling` with what the model suggests for the settings that nobody chose."""
    values: dict[str, Any] = {n: value for n, value in suggested.items() if n not in chosen_by}
    return replace(sampling, **values)


def changed(
    sampling: Sampling,
    name: str,
    text: str,
    suggested: Mapping[str, float],
    chosen_by: dict[str, str],
) -> Sampling:
    """`sampling` with one setting changed; UsageError for a wrong name or value.

    `default` is what the model suggests, if anything. `chosen_by` gets the setting.
    """
    field = _find(name)
    if text == DEFAULT:
        chosen_by.pop(field.name, None)
        value: Any = suggested.get(field.name, field.default)
    else:
        value = KINDS[field.name].parse(text, spelled=f"{_spelled(field)} {text}")
        chosen_by[field.name] = CHAT
    return replace(sampling, **{field.name: value})


def described(sampling: Sampling, name: str, verb: str = "is") -> str:
    """`top-k is 32`: a setting with its value in the form that `\\set` reads."""
    field = _find(name)
    return f"{_spelled(field)} {verb} {_text(field, sampling)}"


def listed(sampling: Sampling, suggested: Mapping[str, float], chosen_by: Mapping[str, str]) -> str:
    """A line for each setting: name, value, where that comes from, and which values it may have."""
    by_model = dict.fromkeys(suggested, "model")
    rows = [
        (
            _spelled(field),
            _text(field, sampling),
            {**by_model, **chosen_by}.get(field.name, DEFAULT),
            KINDS[field.name].description,
        )
        for field in _settable()
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return "\n".join([*lines, "", "\\set NAME default resets a setting."])


def to_json(sampling: Sampling) -> dict[str, Any]:
    """Every setting, for a file."""
    return {field.name: getattr(sampling, field.name) for field in _settable()}


def restored(saved: Mapping[str, Any]) -> tuple[Sampling, list[str]]:
    """The settings in a file, and the names of settings that this version does not know.

    Settings that the file lacks have their default. UsageError for a wrong value.
    """
    known = {field.name: field for field in _settable()}
    values = {
        name: _from_json(known[name], value) for name, value in saved.items() if name in known
    }
    return Sampling(**values), [name for name in saved if name not in known]


def _settable() -> list[Field[Any]]:
    return [field for field in fields(Sampling) if field.name in KINDS]


def _find(name: str) -> Field[Any]:
    for field in _settable():
        if _key(field.name) == _key(name):
            return field
    near = get_close_matches(name.lower(), setting_names(), n=1)
    hint = f"did you mean {near[0]}?" if near else "\\set lists the settings"
    raise UsageError(f"unknown setting {name}", hint=hint)


def _key(name: str) -> str:
    """A name for comparison: `topk`, `top_k` and `top-k` are equal."""
    return name.lower().replace("_", "").replace("-", "")


def _spelled(field: Field[Any]) -> str:
    return field.name.replace("_", "-")


def _text(field: Field[Any], sampling: Sampling) -> str:
    value = getattr(sampling, field.name)
    return "none" if value is None or value == () else KINDS[field.name].show(value)


def _from_json(field: Field[Any], value: Any) -> Any:
    """The value of a setting from JSON; UsageError for a wrong one."""
    if value is None and "None" in str(field.type):
        return None
    return KINDS[field.name].from_json(value, spelled=_spelled(field))
