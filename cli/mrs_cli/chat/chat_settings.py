"""The sampling settings of a chat: set by name, listed, and read back from a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, fields, replace
from difflib import get_close_matches
from typing import Any

from mrs.errors import UsageError
from mrs.request import Sampling
from mrs_cli.parsing.setting_kinds import SETTINGS, Biases, Kind, Texts

DEFAULT = "default"
#: Settings that change what is said; others of `Sampling` are for programs.
KINDS: dict[str, Kind] = {
    **SETTINGS,
    "stop": Texts(),
    "dry_sequence_breakers": Texts(),
    "logit_bias": Biases(),
}


def setting_names() -> list[str]:
    """Every setting, spelled as its flag is."""
    return [_spelled(field) for field in _settable()]


def is_setting(name: str) -> bool:
    return any(_key(field.name) == _key(name) for field in _settable())


def changed(sampling: Sampling, name: str, text: str) -> Sampling:
    """`sampling` with one setting as `text` says; UsageError for what cannot be."""
    field = _find(name)
    value: Any = field.default
    if text != DEFAULT:
        value = KINDS[field.name].parse(text, spelled=f"{_spelled(field)} {text}")
    return replace(sampling, **{field.name: value})


def described(sampling: Sampling, name: str, verb: str = "is") -> str:
    """`top-k is 32`: a setting with its value as `\\set` takes it."""
    field = _find(name)
    return f"{_spelled(field)} {verb} {_text(field, sampling)}"


def listed(sampling: Sampling) -> str:
    """Every setting with its value and what it takes, one a line."""
    rows = [
        (_spelled(field), _text(field, sampling), KINDS[field.name].wording)
        for field in _settable()
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        f"{name:<{widths[0]}}  {value:<{widths[1]}}  {wording}" for name, value, wording in rows
    ]
    return "\n".join([*lines, "", "\\set NAME default sets one back."])


def to_json(sampling: Sampling) -> dict[str, Any]:
    """Every setting as a file holds it."""
    return {field.name: getattr(sampling, field.name) for field in _settable()}


def restored(saved: Mapping[str, Any]) -> tuple[Sampling, list[str]]:
    """The settings that a file holds, and the names of those that this version does not know.

    What the file leaves out has its default. UsageError for a value that cannot be.
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
    raise UsageError(f"no setting {name}", hint=hint)


def _key(name: str) -> str:
    """A name as it is compared: `topk`, `top_k` and `top-k` are one."""
    return name.lower().replace("_", "").replace("-", "")


def _spelled(field: Field[Any]) -> str:
    return field.name.replace("_", "-")


def _text(field: Field[Any], sampling: Sampling) -> str:
    value = getattr(sampling, field.name)
    return "none" if value is None or value == () else KINDS[field.name].show(value)


def _from_json(field: Field[Any], value: Any) -> Any:
    """The value of a setting as JSON holds it; UsageError for one that cannot be."""
    if value is None and "None" in str(field.type):
        return None
    return KINDS[field.name].from_json(value, spelled=_spelled(field))
