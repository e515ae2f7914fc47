"""How flags are declared: under a heading of the help, with the default that the help names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from typer import Option

from mrs.request import AUDIO_SECONDS, ModelSource, RunRequest, VisionRequest
from mrs.request.sampling import SETTINGS
from mrs.request.setting_kinds import Biases, Number, SettingKind, Texts

model_option = partial(Option, rich_help_panel="Model")
device_option = partial(Option, rich_help_panel="Devices and precision")
prompt_option = partial(Option, rich_help_panel="Prompt")
sampling_option = partial(Option, rich_help_panel="Sampling")
planning_option = partial(Option, rich_help_panel="Planning")
cluster_option = partial(Option, rich_help_panel="Several processes")
server_option = partial(Option, rich_help_panel="Server")
timing_option = partial(Option, rich_help_panel="Timing")
general_option = partial(Option, rich_help_panel="General")

#: Headings of the help in their order.
HEADINGS = (
    "Model", "Prompt", "Timing", "Planning", "Server", "Sampling", "Devices and precision",
    "KV cache", "Several processes", "General",
)  # fmt: skip


@dataclass(frozen=True)
class Usual:
    """Marks a flag, after its declaration, as one that the short help of these commands lists.

    Without `commands`, that of every command that has the flag; `first` also that of `mrs` itself.
    """

    commands: tuple[str, ...] = ()
    first: bool = False


USUAL, FIRST = Usual(), Usual(first=True)

#: Defaults of every request by name, for the help.
DEFAULTS: dict[str, Any] = {
    field.name: field.default
    for request in (ModelSource, RunRequest, VisionRequest)
    for field in fields(request)
}


_POSITIVE = Number(1, whole=True)
_NUMBERS: dict[str, SettingKind] = {
    "reasoning_budget": SETTINGS["reasoning_budget"].kind,
    "max_seqs": _POSITIVE,
    "prefix_cache_n": Number(whole=True),
    "max_seq_len": _POSITIVE,
    "max_batch_size": _POSITIVE,
    "max_edge": _POSITIVE,
    "max_num_images": _POSITIVE,
    "max_image_length": _POSITIVE,
    "max_audio_seconds": AUDIO_SECONDS,
}


def number(
    option: partial[Any], name: str, metavar: str, help: str, short: str = "", default: str = ""
) -> Any:
    """The flag of a number in `_NUMBERS`, declared by one of the options above.

    The help shows the default of the request, or `default` if that says it better.
    """
    return option(
        *filter(None, (short, f"--{name.replace('_', '-')}")),
        metavar=metavar,
        parser=flag_parser(name, _NUMBERS[name]),
        help=help,
        show_default=default or _NUMBERS[name].show(DEFAULTS[name]),
    )


def setting_flag(name: str) -> str:
    """The name of the flag of a setting."""
    return f"--{SETTINGS[name].flag or name.replace('_', '-')}"


def setting_option(name: str, short: str = "") -> Any:
    """The flag of a setting in `SETTINGS`; one of texts or tokens may be given several times."""
    setting = SETTINGS[name]
    kind, names = setting.kind, filter(None, (short, setting_flag(name)))
    if isinstance(kind, Number):
        return sampling_option(
            *names,
            metavar="N" if kind.whole else "X",
            parser=flag_parser(name, kind),
            help=setting.help,
            show_default=setting.shown_default,
        )
    return sampling_option(
        *names,
        metavar="TEXT" if isinstance(kind, Texts) else _pairs_metavar(kind),
        help=f"{setting.help} May be given several times.",
        show_default=setting.shown_default,
    )


def _pairs_metavar(kind: SettingKind) -> str:
    return "TOKEN=X" if isinstance(kind, Biases) else "TOKEN"


def flag_parser(name: str, kind: SettingKind) -> Callable[[str], Any]:
    """Reads the text of a flag of this name."""
    return lambda text: kind.parse(text, spelled=f"--{name.replace('_', '-')} {text}")
