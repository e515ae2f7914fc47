"""How flags are declared: under a heading of the help, with the default that the help names."""

from __future__ import annotations

from dataclasses import fields
from functools import partial
from typing import Any

from typer import Option

from mrs.request import ModelSource, RunRequest, Sampling, VisionRequest
from mrs_cli.parsing.setting_kinds import NUMBERS

model_option = partial(Option, rich_help_panel="Model")
device_option = partial(Option, rich_help_panel="Devices and precision")
prompt_option = partial(Option, rich_help_panel="Prompt")
sampling_option = partial(Option, rich_help_panel="Sampling")
planning_option = partial(Option, rich_help_panel="Planning")
cluster_option = partial(Option, rich_help_panel="Several processes")
server_option = partial(Option, rich_help_panel="Server")
timing_option = partial(Option, rich_help_panel="Timing")
general_option = partial(Option, rich_help_panel="General")

#: Defaults of every request by name, for the help.
DEFAULTS: dict[str, Any] = {
    field.name: field.default
    for request in (ModelSource, RunRequest, Sampling, VisionRequest)
    for field in fields(request)
}


def number(
    option: partial[Any], name: str, metavar: str, help: str, short: str = "", default: str = ""
) -> Any:
    """The flag of a number in `NUMBERS`, declared by one of the options above.

    The help shows the default of the request, or `default` if that says it better.
    """
    return option(
        *filter(None, (short, f"--{name.replace('_', '-')}")),
        metavar=metavar,
        parser=NUMBERS[name].from_flag,
        help=help,
        show_default=default or NUMBERS[name].show(DEFAULTS[name]),
    )
