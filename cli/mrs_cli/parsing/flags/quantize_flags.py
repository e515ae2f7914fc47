"""Flags of `mrs quantize`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from mrs_cli.parsing.flags.option import model_option


@dataclass(frozen=True, eq=False, repr=False)
class QuantizeFlags:
    """Where the quantized weights go."""

    output: Annotated[
        str | None,
        model_option(
            "-o",
            "--output",
            metavar="PATH",
            help="Folder for the files, or a .uqff file, whose shards get numbers.",
        ),
    ] = None
