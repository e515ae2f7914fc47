"""The command line that both training programs share."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch


def train_from_command_line(
    program: str, description: str | None, threads: int, train: Callable[[Path], None]
) -> Path:
    """Call `train` with the folder that `--output` names, and print the time it takes.

    `threads` is the default of `--threads`. Returns the folder.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {program}", description=description)
    parser.add_argument("--output", type=Path, required=True, metavar="DIR")
    parser.add_argument(
        "--threads", type=int, default=threads, help=f"CPU threads (default {threads})"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    wall, cpu = time.monotonic(), time.process_time()
    train(arguments.output)
    wall, cpu = time.monotonic() - wall, time.process_time() - cpu
    print(f"trained in {wall:.0f} s, {cpu:.0f} s of CPU", flush=True)
    folder: Path = arguments.output
    return folder
