"""Which values a setting may have, and how they are read and written: the same on every surface."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Integral, Rational, Real
from typing import Any, Protocol

from mrs.errors import UsageError

_LARGEST = sys.float_info.max


class SettingKind(Protocol):
    """The values of a setting. A UsageError quotes `spelled`, what the person wrote."""

    @property
    def wording(self) -> str:
        """What to give, as an error says it."""
        ...

    def accepts(self, value: Any) -> bool:
        """Whether a value of Python or JSON is one of these."""
        ...

    def read(self, value: Any) -> Any:
        """An accepted value as `Sampling` has it."""
        ...

    def parse(self, text: str, *, spelled: str) -> Any:
        """The value in a text. Raises UsageError."""
        ...

    def show(self, value: Any) -> str:
        """`value` in the form that `parse` reads."""
        ...


def read_value(kind: SettingKind, value: Any, *, spelled: str) -> Any:
    """A value of Python or JSON as `Sampling` has it. Raises UsageError if it is not of `kind`."""
    if kind.accepts(value):
        return kind.read(value)
    raise UsageError(f"{spelled} is {quoted(value)}", hint=f"give {kind.wording}")


def quoted(value: Any) -> str:
    """A value as error messages show it: its repr, shortened to 60 characters."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - the repr of a caller's object may raise anything
        text = f"a value of type {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:57]}…"


@dataclass(frozen=True)
class Number:
    """A finite number from `low` to `high`; `above` excludes `low` itself."""

    low: float = 0
    high: float = math.inf
    whole: bool = False
    above: bool = False

    @property
    def wording(self) -> str:
        """`a number from 0 to 2`, `a whole number from 1 up`."""
        has_end = self.high < math.inf
        if self.above:
            end = f", at most {self._text(self.high)}" if has_end else ""
            return f"{self._name} above {self._text(self.low)}{end}"
        end = f"to {self._text(self.high)}" if has_end else "up"
        return f"{self._name} from {self._text(self.low)} {end}"

    @property
    def _name(self) -> str:
        return "a whole number" if self.whole else "a number"

    def _text(self, bound: float) -> str:
        return str(bound) if self.whole else f"{bound:g}"

    def accepts(self, value: Any) -> bool:
        if isinstance(value, bool) or not isinstance(value, Integral if self.whole else Real):
            return False
        number: Any = value if isinstance(value, Rational) else float(value)
        if not -_LARGEST <= number <= _LARGEST or (self.above and number == self.low):
            return False
        return bool(self.low <= number <= self.high)

    def read(self, value: Any) -> float:
        return int(value) if self.whole else float(value)

    def parse(self, text: str, *, spelled: str) -> float:
        try:
            value = int(text) if self.whole else float(text)
        except ValueError:
            raise UsageError(
                f"{spelled} is not {self._name}", hint=f"give {self.wording}"
            ) from None
        if not self.accepts(value):
            raise UsageError(f"{spelled} is out of range", hint=f"give {self.wording}")
        return value

    def show(self, value: float) -> str:
        return f"{value:.10g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Texts:
    """Texts that are not empty, `most` of them, each of at most `longest` characters.

    A text alone is one; in the chat, several are a JSON list.
    """

    most: int = 64
    longest: int = 1000

    @property
    def wording(self) -> str:
        return f'a text, or several as ["A", "B"], none of them empty or over {self.longest} long'

    def accepts(self, value: Any) -> bool:
        texts = [value] if isinstance(value, str) else value
        if not isinstance(texts, (list, tuple)) or len(texts) > self.most:
            return False
        return all(isinstance(text, str) and 0 < len(text) <= self.longest for text in texts)

    def read(self, value: Any) -> tuple[str, ...]:
        return (value,) if isinstance(value, str) else tuple(value)

    def parse(self, text: str, *, spelled: str) -> tuple[str, ...]:
        value: Any = text
        if text.startswith("["):
            try:
                value = json.loads(text)
            except (ValueError, RecursionError):
                value = None
        if not self.accepts(value):
            raise UsageError(f"{spelled} is not a list of texts", hint=f"give {self.wording}")
        return self.read(value)

    def show(self, value: tuple[str, ...]) -> str:
        if len(value) == 1 and value[0].isprintable() and not value[0].startswith("["):
            return value[0]
        return json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True)
class Text:
    """One text of at most `longest` characters, which may be empty."""

    longest: int = 4000

    @property
    def wording(self) -> str:
        return f"a text of at most {self.longest} characters"

    def accepts(self, value: Any) -> bool:
        return isinstance(value, str) and len(value) <= self.longest

    def read(self, value: Any) -> str:
        return str(value)

    def parse(self, text: str, *, spelled: str) -> str:
        if not self.accepts(text):
            raise UsageError(f"{spelled[:60]}\u2026 is too long", hint=f"give {self.wording}")
        return text

    def show(self, value: str) -> str:
        return value if value.isprintable() else json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True)
class Choice:
    """One of some words, in lower case."""

    words: tuple[str, ...]

    @property
    def wording(self) -> str:
        return f"{', '.join(self.words[:-1])} or {self.words[-1]}"

    def accepts(self, value: Any) -> bool:
        return isinstance(value, str) and value in self.words

    def read(self, value: Any) -> str:
        return str(value)

    def parse(self, text: str, *, spelled: str) -> str:
        if not self.accepts(text.lower()):
            raise UsageError(f"{spelled} is not valid", hint=f"give {self.wording}")
        return text.lower()

    def show(self, value: str) -> str:
        return value


@dataclass(frozen=True)
class Tokens:
    """Token ids."""

    most: int = 1024
    wording: str = "token ids, such as [2, 13]"

    def accepts(self, value: Any) -> bool:
        ids = [value] if isinstance(value, Integral) else value
        is_list = isinstance(ids, (list, tuple)) and len(ids) <= self.most
        return is_list and all(map(TOKEN.accepts, ids))

    def read(self, value: Any) -> tuple[int, ...]:
        return (int(value),) if isinstance(value, Integral) else tuple(map(int, value))

    def parse(self, text: str, *, spelled: str) -> tuple[int, ...]:
        try:
            ids = tuple(map(int, text.strip("[]").replace(",", " ").split()))
        except ValueError:
            ids = (-1,)
        if not ids or not self.accepts(ids):
            raise UsageError(f"{spelled} is not a list of token ids", hint=f"give {self.wording}")
        return ids

    def show(self, value: tuple[int, ...]) -> str:
        return " ".join(map(str, value))


@dataclass(frozen=True)
class Biases:
    """At most `most` pairs of a token id and a number to add to its logit, as text TOKEN=X."""

    most: int = 2**14

    @property
    def wording(self) -> str:
        return f"token ids, each with {BIAS.wording}, such as 13=-5; at most {self.most}"

    def accepts(self, value: Any) -> bool:
        if not isinstance(value, (Mapping, list, tuple)) or len(value) > self.most:
            return False
        pairs = value.items() if isinstance(value, Mapping) else value
        return all(
            isinstance(pair, (list, tuple))
            and len(pair) == 2
            and TOKEN.accepts(_token(pair[0]))
            and BIAS.accepts(pair[1])
            for pair in pairs
        )

    def read(self, value: Any) -> tuple[tuple[int, float], ...]:
        pairs = value.items() if isinstance(value, Mapping) else value
        return tuple((int(_token(token)), float(bias)) for token, bias in pairs)

    def parse(self, text: str, *, spelled: str) -> tuple[tuple[int, float], ...]:
        parts = [part.partition("=") for part in text.split()]
        try:
            pairs = [(token, float(bias)) for token, _, bias in parts]
        except ValueError:
            pairs = []
        if not pairs or not self.accepts(pairs):
            raise UsageError(f"{spelled} is not a bias", hint=f"give {self.wording}")
        return self.read(pairs)

    def show(self, value: tuple[tuple[int, float], ...]) -> str:
        return " ".join(f"{token}={bias:.10g}" for token, bias in value)


#: A token id; vocabularies are smaller.
TOKEN = Number(0, 2**31 - 1, whole=True)
#: What is added to a logit: float32 holds every sum.
BIAS = Number(-1e9, 1e9)


def _token(given: Any) -> Any:
    """A token id, which in JSON objects is a text."""
    is_text = isinstance(given, str) and given.isascii() and given.isdecimal() and len(given) < 11
    return int(given) if is_text else given


@dataclass(frozen=True)
class Setting:
    """A setting that people choose: its values, and what is said of it.

    off         the value without effect on which token is chosen; None if it never has any
    unset       what a default of None or of no texts means
    flag        the name of its flag, if that is another
    aliases     further names of the field in requests over HTTP
    gguf_key    where metadata of GGUF files suggest a value
    config_key  where generation_config.json does
    """

    kind: SettingKind
    help: str
    off: Any = None
    unset: str = ""
    flag: str = ""
    aliases: tuple[str, ...] = ()
    gguf_key: str = ""
    config_key: str = ""
    name: str = ""
    default: Any = None

    @property
    def shown_default(self) -> str:
        return self.unset or self.kind.show(self.default)


def setting(default: Any, kind: SettingKind, help: str, **more: Any) -> Any:
    """A field that is a setting; `more` are fields of `Setting`."""
    return field(default=default, metadata={"setting": Setting(kind, help, **more)})
