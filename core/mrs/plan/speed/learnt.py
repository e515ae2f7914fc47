"""Rates that earlier runs on this machine measured, by kind of weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mrs.devices.measurements import cache_file, host_key, read_entries, write_entries
from mrs.plan.speed.draft_record import NOTHING_DRAFTED, DraftRecord
from mrs.plan.speed.roofline import SpeedEstimate

FILE_NAME = "speed.json"

#: A rate this many times slower or faster than expected is not stored: other programs disturbed it,
#: or the run measured something else.
SLOWER, FASTER = 3.0, 4.0
#: Arithmetic does not limit shorter prompts, so they say nothing about its rate.
LEAST_PROMPT_TOKENS = 128


@dataclass
class Pace:
    """The fastest times of a process that ran one sequence alone.

    `step_s` is for one decoding step; `prompt_s` for a prompt of one chunk and an empty cache;
    `drafts` adds up replies with drafts.
    """

    step_s: float | None = None
    prompt_tokens: int = 0
    prompt_s: float = 0.0
    drafts: DraftRecord = NOTHING_DRAFTED

    def add_step(self, seconds: float) -> None:
        """Add the mean of several consecutive steps."""
        if self.step_s is None or seconds < self.step_s:
            self.step_s = seconds

    def add_prompt(self, tokens: int, seconds: float) -> None:
        if tokens * self.prompt_s >= self.prompt_tokens * seconds:
            self.prompt_tokens, self.prompt_s = tokens, seconds


@dataclass(frozen=True)
class Learnt:
    """Measured rates by kind of weights, with the units of `DeviceSpeed`."""

    read_bytes_per_s: Mapping[str, float] = field(default_factory=dict)
    operations_per_s: Mapping[str, float] = field(default_factory=dict)
    step_seconds: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def read(cls, file: Path | None = None) -> Learnt:
        """The stored rates of this machine; none if the file is damaged."""
        entry = read_entries(file or cache_file(FILE_NAME)).get(host_key())
        if not isinstance(entry, dict):
            return cls()
        return cls(**{name: _numbers(entry.get(name)) for name in cls.__dataclass_fields__})


def learn(speed: SpeedEstimate, pace: Pace, file: Path | None = None) -> None:
    """Store the rates of a run that used only the CPU, unless faster ones are stored.

    Other programs can make a run slower, never faster.
    """
    kind, path = speed.weights_kind, file or cache_file(FILE_NAME)
    measured, before = _rates_of(speed, pace), Learnt.read(path)
    if not kind or measured == Learnt():
        return
    merged = {
        "read_bytes_per_s": _merged(before.read_bytes_per_s, measured.read_bytes_per_s, max),
        "operations_per_s": _merged(before.operations_per_s, measured.operations_per_s, max),
        "step_seconds": _merged(before.step_seconds, measured.step_seconds, min),
    }
    if merged != asdict(before):
        write_entries(path, {**read_entries(path), host_key(): merged})


def _rates_of(speed: SpeedEstimate, pace: Pace) -> Learnt:
    """The rates that explain measured times.

    Decoding gives one rate: that of reading or of steps, whichever takes more of its time. Both are
    faster by the same factor if a step took less time than the smaller part of it was expected to.
    """
    index, kind = speed.only_device, speed.weights_kind
    if index is None:
        return Learnt()
    device = speed.devices[index]
    reads, steps, operations = {}, {}, {}
    if pace.step_s is not None:
        reading = speed.read_bytes(index) / device.read_bytes_per_s
        stepping = speed.steps(index, 1) * device.step_seconds
        if pace.step_s <= min(reading, stepping):
            share = pace.step_s / (reading + stepping)
            reads[kind] = device.read_bytes_per_s / share
            steps[kind] = device.step_seconds * share
        elif reading > stepping:
            reads[kind] = _rate(speed.read_bytes(index), pace.step_s - stepping)
        else:
            steps[kind] = (pace.step_s - reading) / speed.steps(index, 1)
    if LEAST_PROMPT_TOKENS <= pace.prompt_tokens <= speed.chunk_tokens:
        tokens = pace.prompt_tokens
        step_s = steps.get(kind, device.step_seconds)
        multiplying = pace.prompt_s - speed.steps(index, tokens) * step_s
        if not device.overlaps:
            multiplying -= speed.read_bytes(index, tokens) / reads.get(
                kind, device.read_bytes_per_s
            )
        work = speed.operations(index, tokens, speed.past(0, tokens))
        operations[kind] = _rate(work, multiplying)
    step_s = device.step_seconds
    return Learnt(
        _plausible(reads, device.read_bytes_per_s),
        _plausible(operations, device.operations_per_s),
        {k: s for k, s in steps.items() if step_s / FASTER < s < step_s * SLOWER},
    )


def _rate(amount: float, seconds: float) -> float:
    return amount / seconds if seconds > 0 else 0.0


def _plausible(rates: Mapping[str, float], expected: float) -> dict[str, float]:
    low, high = expected / SLOWER, expected * FASTER
    return {kind: value for kind, value in rates.items() if low < value < high}


def _merged(
    before: Mapping[str, float], measured: Mapping[str, float], best: Any
) -> dict[str, float]:
    kinds = {**before, **measured}
    return {
        kind: best(known[kind] for known in (before, measured) if kind in known) for kind in kinds
    }


def _numbers(value_by_kind: object) -> dict[str, float]:
    if not isinstance(value_by_kind, dict):
        return {}
    return {
        kind: float(value)
        for kind, value in value_by_kind.items()
        if type(value) in (int, float) and 0 < value < float("inf")
    }
