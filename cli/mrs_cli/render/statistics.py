"""The statistics of a reply: a line for a person, an object for a program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from mrs.events import ReplyUsage
from mrs_cli.render.reply_events import CompleteReply
from mrs_cli.render.safe_text import rate_range


def statistics_line(reply: CompleteReply, columns: int | None = None) -> str:
    """Time to first token, then tokens and tokens a second of prompt and reply.

    The planned rate follows the reply's rate, and the prompt's rate if that is out of range. A line
    that is longer than `columns` loses what matters least: drafts, planned rates, tokens of caches
    and thoughts, then the prompt and the time to the first token.
    """
    lines = (" · ".join(_facts(reply, left_out)) for left_out in range(_PARTS + 1))
    fitting = (line for line in lines if columns is None or len(line) <= columns)
    return next(fitting, " · ".join(_facts(reply, _PARTS)))


#: Later positions of drafts are not shown: few drafts have them.
_SHOWN_POSITIONS = 4
#: Parts that a line can lose.
_PARTS = 5


def _facts(reply: CompleteReply, left_out: int) -> list[str]:
    """The facts without so many of the parts that can be left out."""
    if reply.usage is None:
        return ["stopped"]
    usage = reply.usage
    drafts, plan, kinds, prompt, first = (left_out <= each for each in range(_PARTS))
    cached = f" ({usage.cached_tokens} cached)" if usage.cached_tokens and kinds else ""
    prompt_rate, reply_rate = usage.prompt_tokens_per_s, usage.completion_tokens_per_s
    planned_prompt = planned_reply = ""
    if usage.planned is not None and plan:
        if usage.planned.prompt_tokens_per_s is not None:
            low, high = usage.planned.prompt_tokens_per_s
            if not low <= prompt_rate <= high:
                planned_prompt = _planned(prompt_rate, low, high)
        planned_reply = _planned(reply_rate, *usage.planned.completion_tokens_per_s)
    thought = f" ({usage.reasoning_tokens} of thoughts)" if usage.reasoning_tokens and kinds else ""
    facts = [f"first token {_seconds(usage.prompt_s)}"] if first else []
    if prompt:
        tokens = f"prompt {usage.prompt_tokens} tokens{cached}"
        facts.append(f"{tokens}{_rate(prompt_rate)}{planned_prompt}")
    facts.append(
        f"reply {usage.completion_tokens} tokens{thought}{_rate(reply_rate)}{planned_reply}"
    )
    if usage.drafted_tokens and drafts:
        facts.append(_drafts(usage))
    if reply.reason == "length":
        facts.append("stopped at the length limit")
    elif reply.reason == "cancelled":
        facts.append("stopped")
    return facts


def reply_object(reply: CompleteReply) -> dict[str, Any]:
    """The object of `--json`; counts and times are null if the model gave none.

    Planned rates are null for replies that were computed at the same time as others.
    """
    usage = reply.usage
    planned = None if usage is None or usage.planned is None else asdict(usage.planned)
    counts = ("prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens")
    positions = ("drafted_by_position", "accepted_by_position", "draft_gain")
    drafts = ("drafts", "drafted_tokens", "accepted_tokens", *positions)
    times = ("prompt_s", "completion_s")
    rates = ("prompt_tokens_per_s", "completion_tokens_per_s")
    return {
        "text": reply.text,
        "finish_reason": reply.reason,
        **{name: usage and getattr(usage, name) for name in (*counts, *drafts, *times, *rates)},
        **{f"planned_{name}": planned and planned[name] for name in rates},
    }


def _drafts(usage: ReplyUsage) -> str:
    gain = f", {usage.draft_gain:.1f} times as fast" if usage.draft_gain else ""
    shares = acceptance_shares(usage.drafted_by_position, usage.accepted_by_position)
    by_position = f" ({shares} by position)" if shares else ""
    return (
        f"{usage.accepted_tokens} of {usage.drafted_tokens} drafted tokens accepted"
        f"{by_position}{gain}"
    )


def acceptance_shares(drafted: Sequence[int], accepted: Sequence[int]) -> str:
    """The share that was accepted of the first tokens of drafts, of the second and so on."""
    counts = list(zip(drafted, accepted, strict=True))[:_SHOWN_POSITIONS]
    shares = ", ".join(f"{100 * part / whole:.0f}" for whole, part in counts if whole)
    return f"{shares} %" if shares else ""


def _planned(rate: float, low: float, high: float) -> str:
    return f" (planned {rate_range(low, high)})" if rate else ""


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds < 9.995 else f"{seconds:.1f} s"


def _rate(tokens_per_s: float) -> str:
    if not tokens_per_s:
        return ""
    return f", {tokens_per_s:.1f}/s" if tokens_per_s < 99.95 else f", {tokens_per_s:.0f}/s"
