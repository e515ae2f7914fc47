"""Settings that are numbers, by name, with the values each may take: flags and chat share them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mrs.errors import UsageError


@dataclass(frozen=True)
class Setting:
    """A number between `low` and `high`; `above` leaves `low` itself out."""

    name: str
    whole: bool = False
    low: float = 0
    high: float = math.inf
    above: bool = False

    @property
    def wording(self) -> str:
        """`a number from 0 to 2`, `a whole number from 1 up`."""
        kind = "a whole number" if self.whole else "a number"
        start = f"above {self.low:g}" if self.above else f"from {self.low:g}"
        if self.high == math.inf:
            return f"{kind} {start}" if self.above else f"{kind} {start} up"
        return f"{kind} {start}{' and' if self.above else ''} up to {self.high if self.whole else format(self.high, 'g')}"

    def parse(self, text: str, *, spelled: str) -> float:
        """The number that `text` says, an int for a whole one; UsageError quotes `spelled`."""
        try:
            value = int(text) if self.whole else float(text)
        except ValueError:
            raise UsageError(f"{spelled} is no number", hint=f"give {self.wording}") from None
        too_low = value <= self.low if self.above else value < self.low
        if math.isnan(value) or math.isinf(value) or too_low or value > self.high:
            raise UsageError(f"{spelled} is out of range", hint=f"give {self.wording}")
        return value

    def from_flag(self, text: str) -> float:
        """The number given to the flag of this name."""
        return self.parse(text, spelled=f"--{self.name.replace('_', '-')} {text}")


SETTINGS = {
    setting.name: setting
    for setting in (
        Setting("temperature", high=2),
        Setting("top_k", whole=True),
        Setting("top_p", high=1, above=True),
        Setting("min_p", high=1),
        Setting("repetition_penalty", above=True),
        Setting("frequency_penalty", low=-2, high=2),
        Setting("presence_penalty", low=-2, high=2),
        Setting("max_tokens", whole=True, low=1),
        Setting("dry_multiplier"),
        Setting("dry_base", low=1),
        Setting("dry_allowed_length", whole=True, low=1),
        Setting("seed", whole=True, high=2**64 - 1),
        Setting("max_seqs", whole=True, low=1),
        Setting("prefix_cache_n", whole=True),
        Setting("max_seq_len", whole=True, low=1),
        Setting("max_batch_size", whole=True, low=1),
    )
}
