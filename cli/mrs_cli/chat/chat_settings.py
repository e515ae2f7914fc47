"""The sampling settings of a chat: set by name, listed, saved and loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from mrs.errors import UsageError
from mrs.request import Sampling
from mrs.request.sampling import SETTINGS
from mrs.request.setting_kinds import Setting, read_value

DEFAULT = "default"
#: Where a setting was chosen, if not by a flag.
CHAT, SAVED = "\\set", "saved chat"


def setting_names() -> list[str]:
    """Every setting, spelled like its flag."""
    return [_spelled(setting) for setting in SETTINGS.values()]


def is_setting(name: str) -> bool:
    return any(_key(known) == _key(name) for known in SETTINGS)


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
    setting = _find(name)
    if text == DEFAULT:
        chosen_by.pop(setting.name, None)
        value: Any = suggested.get(setting.name, setting.default)
    else:
        value = setting.kind.parse(text, spelled=f"{_spelled(setting)} {text}")
        chosen_by[setting.name] = CHAT
    return replace(sampling, **{setting.name: value})


def described(sampling: Sampling, name: str, verb: str = "is") -> str:
    """`top-k is 32`: a setting with its value in the form that `\\set` reads."""
    setting = _find(name)
    return f"{_spelled(setting)} {verb} {_text(setting, sampling)}"


def listed(sampling: Sampling, suggested: Mapping[str, float], chosen_by: Mapping[str, str]) -> str:
    """A line for each setting: name, value, where that comes from, and which values it may have."""
    by_model = dict.fromkeys(suggested, "model")
    rows = [
        (
            _spelled(setting),
            _text(setting, sampling),
            {**by_model, **chosen_by}.get(setting.name, DEFAULT),
            setting.kind.wording,
        )
        for setting in SETTINGS.values()
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return "\n".join([*lines, "", "\\set NAME default resets a setting."])


def to_json(sampling: Sampling) -> dict[str, Any]:
    """Every setting, for a file."""
    return {name: getattr(sampling, name) for name in SETTINGS}


def restored(saved: Mapping[str, Any]) -> tuple[Sampling, list[str]]:
    """The settings in a file, and the names of settings that this version does not know.

    Settings that the file lacks have their default. UsageError for a wrong value.
    """
    values = {
        name: _restored(SETTINGS[name], value) for name, value in saved.items() if name in SETTINGS
    }
    return Sampling(**values), [name for name in saved if name not in SETTINGS]


def _restored(setting: Setting, value: Any) -> Any:
    if value is None and (setting.default is None or setting.off is not None):
        return setting.off  # earlier versions wrote null for what is off
    return read_value(setting.kind, value, spelled=_spelled(setting))


def _find(name: str) -> Setting:
    for setting in SETTINGS.values():
        if _key(setting.name) == _key(name):
            return setting
    near = get_close_matches(name.lower(), setting_names(), n=1)
    hint = f"did you mean {near[0]}?" if near else "\\set lists the settings"
    raise UsageError(f"unknown setting {name}", hint=hint)


def _key(name: str) -> str:
    """A name for comparison: `topk`, `top_k` and `top-k` are equal."""
    return name.lower().replace("_", "").replace("-", "")


def _spelled(setting: Setting) -> str:
    return setting.name.replace("_", "-")


def _text(setting: Setting, sampling: Sampling) -> str:
    value = getattr(sampling, setting.name)
    return "none" if value is None or value == () else setting.kind.show(value)
