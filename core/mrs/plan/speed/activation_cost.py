"""What activations of 16 significant bits cost on a CPU, beside those of 8."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from mrs.devices.cpu_path import cpu_path
from mrs.devices.measurements import cache_file, host_key, read_entries, write_entries

FILE_NAME = "activations.json"


class ActivationCost(NamedTuple):
    """The speed of replies and of prompts, as shares of that with 8 bits."""

    reply: float
    prompt: float
    is_measured: bool = False


#: Replies wait for memory, and a prompt has twice as many products.
EXPECTED = ActivationCost(1.0, 0.5)


def activation_cost(weights_format: str, file: Path | None = None) -> ActivationCost:
    """The cost of products with weights of a format here: measured before, or expected."""
    known = read_entries(file or cache_file(FILE_NAME)).get(_key(weights_format))
    match known:
        case [float(reply), float(prompt)] if 0 < reply <= 1 and 0 < prompt <= 1:
            return ActivationCost(reply, prompt, is_measured=True)
    return EXPECTED


def remember_cost(weights_format: str, cost: ActivationCost, file: Path | None = None) -> None:
    """Save a measured cost for later plans."""
    path = file or cache_file(FILE_NAME)
    entries = {**read_entries(path), _key(weights_format): [cost.reply, cost.prompt]}
    write_entries(path, entries)


def _key(weights_format: str) -> str:
    return f"{host_key()}, {cpu_path()}, {weights_format}"
