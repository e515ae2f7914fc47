"""The line after a reply, and the object that says the same to a program."""

from __future__ import annotations

from typing import Any

from mrs_cli.session import Reply


def statistics_line(reply: Reply) -> str:
    """Time to first token, then tokens and tokens a second of prompt and reply."""
    if reply.usage is None:
        return "stopped"
    usage = reply.usage
    cached = f" ({usage.cached_tokens} cached)" if usage.cached_tokens else ""
    parts = [
        f"first token {_seconds(usage.prompt_s)}",
        f"prompt {usage.prompt_tokens} tokens{cached}{_rate(usage.prompt_tokens_per_s)}",
        f"reply {usage.completion_tokens} tokens{_rate(usage.completion_tokens_per_s)}",
    ]
    if reply.reason == "length":
        parts.append("cut at the length limit")
    elif reply.reason == "cancelled":
        parts.append("stopped")
    return " · ".join(parts)


def reply_object(reply: Reply) -> dict[str, Any]:
    """The facts of `--json`; counts and times are null when the model gave none."""
    usage = reply.usage
    names = ("prompt_tokens", "completion_tokens", "cached_tokens", "prompt_s", "completion_s")
    rates = ("prompt_tokens_per_s", "completion_tokens_per_s")
    return {
        "text": reply.text,
        "finish_reason": reply.reason,
        **{name: usage and getattr(usage, name) for name in (*names, *rates)},
    }


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds < 9.995 else f"{seconds:.1f} s"


def _rate(tokens_per_s: float) -> str:
    if not tokens_per_s:
        return ""
    return f", {tokens_per_s:.1f}/s" if tokens_per_s < 99.95 else f", {tokens_per_s:.0f}/s"
