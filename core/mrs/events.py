"""Events of loading and answering, as values for a renderer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length", "cancelled", "tool_calls"]


#: The `device` of a download's progress.
DISK = "disk"


@dataclass(frozen=True)
class LoadProgress:
    """`done_bytes` of `total_bytes` are on `device`; the first event of a device has 0 bytes."""

    device: str
    done_bytes: int
    total_bytes: int


OnProgress = Callable[[LoadProgress], None]


@dataclass(frozen=True)
class PlannedRates:
    """The plan's prediction for a single reply: (lowest, highest) tokens per second.

    `prompt_tokens_per_s` is None for short prompts, whose time depends on other things.
    """

    prompt_tokens_per_s: tuple[float, float] | None
    completion_tokens_per_s: tuple[float, float]


@dataclass(frozen=True)
class ReplyUsage:
    """Token counts and times of one reply.

    `cached_tokens` of the `prompt_tokens` came from the prefix cache and were not computed.
    `prompt_s` is the time to the first token, `completion_s` the time of all later tokens.
    `planned` is None if other replies were computed in the same batch, since the plan predicts
    rates for a single one. Of `drafted_tokens` in `drafts` drafts, each in a step of its own,
    `accepted_tokens` became part of the reply; both are also counted by their position in the
    draft. With them the reply was `draft_gain` times as fast as without, if that is known.
    `reasoning_tokens` of the `completion_tokens` are thoughts, their marks included.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    prompt_s: float
    completion_s: float
    planned: PlannedRates | None = None
    drafts: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    drafted_by_position: tuple[int, ...] = ()
    accepted_by_position: tuple[int, ...] = ()
    draft_gain: float | None = None
    reasoning_tokens: int = 0

    @property
    def prompt_tokens_per_s(self) -> float:
        return _rate(self.prompt_tokens - self.cached_tokens, self.prompt_s)

    @property
    def completion_tokens_per_s(self) -> float:
        """Without the first token, whose time is part of `prompt_s`."""
        return _rate(self.completion_tokens - 1, self.completion_s)


def _rate(tokens: int, seconds: float) -> float:
    return tokens / seconds if tokens > 0 and seconds > 0 else 0.0


@dataclass(frozen=True)
class DeviceMemoryUsage:
    """The memory that this process uses on a device now, and what is available there.

    `device` is its torch name. On the CPU all memory of the process counts.
    """

    device: str
    used_bytes: int
    available_bytes: int


@dataclass(frozen=True)
class TokenLogprob:
    """A token of the reply as bytes, and the natural logarithm of its probability.

    The probability is that of the model's logits, before sampling settings change them. `top` has
    the most likely tokens with their log probabilities, best first. Before the token, the text has
    `offset` characters that are complete. A control token has its name as bytes.
    """

    token: bytes
    logprob: float
    top: tuple[tuple[bytes, float], ...] = ()
    offset: int = 0


@dataclass(frozen=True)
class TextDelta:
    """New text of the reply, in whole characters.

    `logprobs` are those of the tokens since the last event, if the request asks for them.
    """

    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True)
class ToolCallDelta:
    """A part of the call `index` of a tool: at first its `id` and `name`, then its arguments.

    The arguments of all parts together are JSON.
    """

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


@dataclass(frozen=True)
class Finished:
    """The reply's last event; `stop_string` is that of the request which has ended it, if any.

    `prompt_logprobs` are those of the prompt's tokens after the first, if the request asks for
    them.
    """

    reason: FinishReason
    usage: ReplyUsage
    stop_string: str | None = None
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None


Event = TextDelta | ToolCallDelta | Finished
