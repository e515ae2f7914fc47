"""Every setting of `Sampling` by its name, and how those of a reply are chosen.

A setting is declared once, as a field of `Sampling`. From the fields are made: flags, `\\set` of
the chat, the checks of the Python API, the fields of requests over HTTP and their documentation,
what is read from a model's files, and what the sampler of a device leaves to the host. To add one,
add a field with `setting`, and what it does in `mrs.engine.sampling`; requests of Python programs
name their fields for type checkers, and a test compares them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from mrs.request import Sampling
from mrs.request.setting_kinds import Setting

#: Every setting, by its name.
SETTINGS: Mapping[str, Setting] = {
    each.name: replace(each.metadata["setting"], name=each.name, default=each.default)
    for each in fields(Sampling)
    if "setting" in each.metadata
}


def chosen_sampling(
    given: Mapping[str, Any], suggested: Mapping[str, Any], **more: Any
) -> Sampling:
    """The settings of a reply: those given, those that the model's files suggest, the defaults.

    `given` are accepted values by name, None where nothing is given; `more` are other fields of
    `Sampling`.
    """
    chosen = {
        name: SETTINGS[name].kind.read(value) for name, value in given.items() if value is not None
    }
    return Sampling(**{**suggested, **chosen, **more})
