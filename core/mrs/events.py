"""What happens while a model loads and answers, as values that a renderer can show."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length", "cancelled"]


#: The device of a download's progress.
DISK = "disk"


@dataclass(frozen=True)
class LoadProgress:
    """`done_bytes` of the `total_bytes` that `device` will hold are in place.

    The first for each device comes before its first byte.
    """

    device: str
    done_bytes: int
    total_bytes: int


OnProgress = Callable[[LoadProgress], None]


@dataclass(frozen=True)
class PlannedRates:
    """Tokens a second that the plan expected of a reply that is made alone, low and high.

    A prompt of few tokens has no rate: how soon its reply begins depends on other things.
    """

    prompt_tokens_per_s: tuple[float, float] | None
    completion_tokens_per_s: tuple[float, float]


@dataclass(frozen=True)
class Usage:
    """Token counts and times of one reply.

    `cached_tokens` of the `prompt_tokens` came from a cache and cost nothing. `prompt_s` is the
    time to the first token, `completion_s` the time of all further tokens. `planned` is there
    where the rates can be held against the plan's: not for replies that were made together.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    prompt_s: float
    completion_s: float
    planned: PlannedRates | None = None

    @property
    def prompt_tokens_per_s(self) -> float:
        return _rate(self.prompt_tokens - self.cached_tokens, self.prompt_s)

    @property
    def completion_tokens_per_s(self) -> float:
        """The first token belongs to the prompt's time, so it does not count here."""
        return _rate(self.completion_tokens - 1, self.completion_s)


def _rate(tokens: int, seconds: float) -> float:
    return tokens / seconds if tokens > 0 and seconds > 0 else 0.0


@dataclass(frozen=True)
class DeviceMemoryUsage:
    """What this process holds on a device now, and what is free there.

    `device` is its torch name; on the CPU all memory of the process counts.
    """

    device: str
    held_bytes: int
    available_bytes: int


@dataclass(frozen=True)
class TokenLogprob:
    """A token of the reply as bytes, and the natural logarithm of its probability.

    The probability is the model's own, before sampling settings change it. `top` has the
    likeliest tokens with theirs, best first.
    """

    token: bytes
    logprob: float
    top: tuple[tuple[bytes, float], ...] = ()


@dataclass(frozen=True)
class TextDelta:
    """More text of the reply: whole characters, never a part of one.

    `logprobs` are those of the tokens since the last event, if they were asked for.
    """

    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True)
class Finished:
    """The reply's last event."""

    reason: FinishReason
    usage: Usage


Event = TextDelta | Finished
