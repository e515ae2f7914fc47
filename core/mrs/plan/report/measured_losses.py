"""What quantization loses of single models, as `mrs eval` measured it on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from mrs.devices.measurements import cache_file, read_entries, write_entries
from mrs.plan.memory.model_facts import ModelFacts

FILE_NAME = "losses.json"
#: The figures of so many models are kept, those of the latest evaluations.
MOST_MODELS = 500


class MeasuredLoss(NamedTuple):
    """The share by which a format raises perplexity, its standard error, and the divergence.

    All against the exact model; the divergence is the mean, in nats.
    """

    perplexity_change: float
    error: float | None
    divergence: float


def remember_loss(model: ModelFacts, isq: str | None, loss: MeasuredLoss) -> None:
    """Store what a format of `--isq` loses, or None for the weights as they are."""
    path = cache_file(FILE_NAME)
    known = read_entries(path)
    formats = known.pop(_key(model), None)
    formats = formats if isinstance(formats, dict) else {}
    kept = dict(list(known.items())[-(MOST_MODELS - 1) :])
    kept[_key(model)] = {**formats, str(isq): loss._asdict()}
    write_entries(path, kept)


def measured_loss(model: ModelFacts, isq: str | None) -> MeasuredLoss | None:
    """What was measured of a format; None if nothing was."""
    formats = read_entries(cache_file(FILE_NAME)).get(_key(model))
    entry = formats.get(str(isq)) if isinstance(formats, dict) else None
    return _loss(entry) if isinstance(entry, dict) else None


def _loss(entry: Mapping[str, Any]) -> MeasuredLoss | None:
    change, error, divergence = map(entry.get, MeasuredLoss._fields)
    if not isinstance(change, float) or not isinstance(divergence, float):
        return None
    return MeasuredLoss(change, error if isinstance(error, float) else None, divergence)


def _key(model: ModelFacts) -> str:
    """A folder by its path, as its name may be that of others elsewhere."""
    path = Path(model.model_id)
    name = str(path.resolve()) if path.exists() else model.model_id
    return f"{name} {model.fingerprint}"
