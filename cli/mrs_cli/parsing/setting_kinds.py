"""Settings by kind and name, with the values each may take: flags and chat share them."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, Protocol

from mrs.errors import UsageError

#: No setting means anything beyond it, and every number up to it is a float as well.
_MOST = 2.0**64


class Kind(Protocol):
    """What a setting may be, and how it is written. UsageError quotes `spelled`."""

    @property
    def wording(self) -> str: ...
    def parse(self, text: str, *, spelled: str) -> Any: ...
    def from_json(self, value: Any, *, spelled: str) -> Any: ...
    def show(self, value: Any) -> str:
        """`value` as `parse` takes it."""
        ...


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
        is_above = value > self.low if self.above else value >= self.low
        if not (is_above and value <= min(self.high, _MOST)):  # NaN is not above anything
            raise UsageError(f"{spelled} is out of range", hint=f"give {self.wording}")
        return value

    def from_json(self, value: Any, *, spelled: str) -> float:
        text = "" if isinstance(value, bool) else str(value)
        return self.parse(text, spelled=f"{spelled} {text[:40]}")

    def show(self, value: float) -> str:
        return f"{value:.10g}" if isinstance(value, float) else str(value)

    def from_flag(self, text: str) -> float:
        """The number given to the flag of this name."""
        return self.parse(text, spelled=f"--{self.name.replace('_', '-')} {text}")


class Texts:
    """Texts that are not empty: one as it is, several as a list in JSON."""

    wording = 'a text, or several as ["A", "B"]'

    def parse(self, text: str, *, spelled: str) -> tuple[str, ...]:
        if not text.startswith("["):
            return (text,)
        try:
            return self.from_json(json.loads(text), spelled=spelled)
        except (ValueError, RecursionError):
            raise _no_texts(spelled) from None

    def from_json(self, value: Any, *, spelled: str) -> tuple[str, ...]:
        if not isinstance(value, list) or not all(isinstance(text, str) and text for text in value):
            raise _no_texts(spelled)
        return tuple(value)

    def show(self, value: tuple[str, ...]) -> str:
        if len(value) == 1 and value[0].isprintable() and not value[0].startswith("["):
            return value[0]
        return json.dumps(value, ensure_ascii=False)


class Biases:
    """Pairs of a token id and what is added to its logit, written TOKEN=X."""

    wording = "TOKEN=X, or several with spaces"

    def parse(self, text: str, *, spelled: str) -> tuple[tuple[int, float], ...]:
        return tuple(self.pair(part, spelled=spelled) for part in text.split())

    def pair(self, text: str, *, spelled: str) -> tuple[int, float]:
        token, _, value = text.partition("=")
        try:
            pair = int(token), float(value)
        except ValueError:
            pair = -1, math.inf
        if pair[0] < 0 or not math.isfinite(pair[1]):
            raise UsageError(f"{spelled} is no bias", hint="give TOKEN=X, such as 13=-5")
        return pair

    def from_json(self, value: Any, *, spelled: str) -> tuple[tuple[int, float], ...]:
        pairs = value if isinstance(value, list) else [value]
        if not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
            raise UsageError(f"{spelled} is no list of pairs")
        return self.parse(" ".join(f"{pair[0]}={pair[1]}" for pair in pairs), spelled=spelled)

    def show(self, value: tuple[tuple[int, float], ...]) -> str:
        return " ".join(f"{token}={bias:.10g}" for token, bias in value)


def _no_texts(spelled: str) -> UsageError:
    return UsageError(f"{spelled} is no list of texts", hint='give texts as ["A", "B"]')


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
        Setting("max_edge", whole=True, low=1),
        Setting("max_num_images", whole=True, low=1),
        Setting("max_image_length", whole=True, low=1),
    )
}
