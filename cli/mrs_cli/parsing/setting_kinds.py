"""What kinds of settings there are, and which values each may have: flags and chat share them."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, Protocol

from mrs.errors import UsageError

#: No setting needs a larger number, and every number up to it can be converted to a float.
_MAX_NUMBER = 2.0**64


class SettingKind(Protocol):
    """How a setting is read and written. A UsageError quotes `spelled`, what the person wrote."""

    @property
    def description(self) -> str: ...
    def parse(self, text: str, *, spelled: str) -> Any: ...
    def from_json(self, value: Any, *, spelled: str) -> Any: ...
    def show(self, value: Any) -> str:
        """`value` in the form that `parse` reads."""
        ...


@dataclass(frozen=True)
class NumberSetting:
    """A number from `low` to `high`; `above` excludes `low` itself."""

    name: str
    whole: bool = False
    low: float = 0
    high: float = math.inf
    above: bool = False

    @property
    def description(self) -> str:
        """`a number from 0 to 2`, `a whole number, at least 1`."""
        kind = "a whole number" if self.whole else "a number"
        high = str(self.high) if self.whole else f"{self.high:g}"
        if self.above:
            return (
                f"{kind} above {self.low:g}"
                if self.high == math.inf
                else f"{kind} above {self.low:g}, at most {high}"
            )
        if self.high == math.inf:
            return f"{kind}, at least {self.low:g}"
        return f"{kind} from {self.low:g} to {high}"

    def parse(self, text: str, *, spelled: str) -> float:
        """The number in `text`, an int for a whole number."""
        try:
            value = int(text) if self.whole else float(text)
        except ValueError:
            kind = "a whole number" if self.whole else "a number"
            hint = f"give {self.description}"
            raise UsageError(f"{spelled} is not {kind}", hint=hint) from None
        is_above = value > self.low if self.above else value >= self.low
        if not (is_above and value <= min(self.high, _MAX_NUMBER)):  # false for NaN, too
            raise UsageError(f"{spelled} is out of range", hint=f"give {self.description}")
        return value

    def from_json(self, value: Any, *, spelled: str) -> float:
        text = "" if isinstance(value, bool) else str(value)
        return self.parse(text, spelled=f"{spelled} {text[:40]}")

    def show(self, value: float) -> str:
        return f"{value:.10g}" if isinstance(value, float) else str(value)

    def from_flag(self, text: str) -> float:
        """The number given to the flag with this setting's name."""
        return self.parse(text, spelled=f"--{self.name.replace('_', '-')} {text}")


class TextsSetting:
    """Texts that are not empty: one as it is, several as a JSON list."""

    description = 'a text, or several as ["A", "B"]'

    def parse(self, text: str, *, spelled: str) -> tuple[str, ...]:
        if not text.startswith("["):
            return (text,)
        try:
            return self.from_json(json.loads(text), spelled=spelled)
        except (ValueError, RecursionError):
            raise _not_texts(spelled) from None

    def from_json(self, value: Any, *, spelled: str) -> tuple[str, ...]:
        if not isinstance(value, list) or not all(isinstance(text, str) and text for text in value):
            raise _not_texts(spelled)
        return tuple(value)

    def show(self, value: tuple[str, ...]) -> str:
        if len(value) == 1 and value[0].isprintable() and not value[0].startswith("["):
            return value[0]
        return json.dumps(value, ensure_ascii=False)


def _not_texts(spelled: str) -> UsageError:
    return UsageError(f"{spelled} is not a list of texts", hint='give texts as ["A", "B"]')


class TextSetting:
    """One text."""

    description = "a text"

    def parse(self, text: str, *, spelled: str) -> str:
        return text

    def from_json(self, value: Any, *, spelled: str) -> str:
        if not isinstance(value, str):
            raise UsageError(f"{spelled} is not a text", hint="give a text")
        return value

    def show(self, value: str) -> str:
        return value if value.isprintable() else json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True)
class ChoiceSetting:
    """One of some words."""

    words: tuple[str, ...]

    @property
    def description(self) -> str:
        return f"{', '.join(self.words[:-1])} or {self.words[-1]}"

    def parse(self, text: str, *, spelled: str) -> str:
        if text.lower() not in self.words:
            raise UsageError(f"{spelled} is not valid", hint=f"give {self.description}")
        return text.lower()

    def from_json(self, value: Any, *, spelled: str) -> str:
        return self.parse(str(value)[:40], spelled=spelled)

    def show(self, value: str) -> str:
        return value


class BiasesSetting:
    """Pairs of a token id and a number to add to its logit, written TOKEN=X."""

    description = "TOKEN=X, or several, separated by spaces"

    def parse(self, text: str, *, spelled: str) -> tuple[tuple[int, float], ...]:
        return tuple(self.pair(part, spelled=spelled) for part in text.split())

    def pair(self, text: str, *, spelled: str) -> tuple[int, float]:
        token, _, value = text.partition("=")
        try:
            pair = int(token), float(value)
        except ValueError:
            pair = -1, math.inf
        if pair[0] < 0 or not math.isfinite(pair[1]):
            raise UsageError(f"{spelled} is not a bias", hint="give TOKEN=X, such as 13=-5")
        return pair

    def from_json(self, value: Any, *, spelled: str) -> tuple[tuple[int, float], ...]:
        pairs = value if isinstance(value, list) else [value]
        if not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
            raise UsageError(f"{spelled} is not a list of pairs")
        return self.parse(" ".join(f"{pair[0]}={pair[1]}" for pair in pairs), spelled=spelled)

    def show(self, value: tuple[tuple[int, float], ...]) -> str:
        return " ".join(f"{token}={bias:.10g}" for token, bias in value)


NUMBERS = {
    setting.name: setting
    for setting in (
        NumberSetting("temperature", high=2),
        NumberSetting("top_k", whole=True),
        NumberSetting("top_p", high=1, above=True),
        NumberSetting("min_p", high=1),
        NumberSetting("repetition_penalty", above=True),
        NumberSetting("frequency_penalty", low=-2, high=2),
        NumberSetting("presence_penalty", low=-2, high=2),
        NumberSetting("max_tokens", whole=True, low=1),
        NumberSetting("dry_multiplier"),
        NumberSetting("dry_base", low=1),
        NumberSetting("dry_allowed_length", whole=True, low=1),
        NumberSetting("seed", whole=True, high=2**64 - 1),
        NumberSetting("reasoning_budget", whole=True, low=-1),
        NumberSetting("max_seqs", whole=True, low=1),
        NumberSetting("prefix_cache_n", whole=True),
        NumberSetting("max_seq_len", whole=True, low=1),
        NumberSetting("max_batch_size", whole=True, low=1),
        NumberSetting("max_edge", whole=True, low=1),
        NumberSetting("max_num_images", whole=True, low=1),
        NumberSetting("max_image_length", whole=True, low=1),
    )
}
