"""The flag that names a file with other flags."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from mrs_cli.parsing.flags.flags import Flags
from mrs_cli.parsing.flags.option import general_option


@dataclass(init=False, eq=False, repr=False)
class ConfigFlags(Flags):
    """Is read before all others, by `parsing/settings.py`."""

    config_file: Annotated[
        str | None,
        general_option(
            "--config",
            metavar="FILE",
            help="Read flags from FILE, a TOML file with their long names, as presets have. Flags "
            "on the command line, and MRS_ variables such as MRS_MAX_SEQS, come before it.",
        ),
    ] = None
