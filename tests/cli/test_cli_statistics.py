"""The line after a reply, and what a program gets of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mrs.events import PlannedRates, ReplyUsage
from mrs.units import rounded_rate
from mrs_cli.render.reply_events import CompleteReply
from mrs_cli.render.statistics import reply_object, statistics_line


def reply(planned: PlannedRates | None, completion_tokens: int = 11) -> CompleteReply:
    """100 tokens of prompt a second, 40 of reply."""
    usage = ReplyUsage(50, completion_tokens, 0, 0.5, (completion_tokens - 1) / 40, planned)
    return CompleteReply("text", "stop", usage)


@pytest.mark.parametrize(
    ("prompt", "completion", "prompt_text", "reply_text"),
    [
        ((90, 300), (38, 45), "100/s", "40.0/s (planned 38\u201345)"),
        ((150, 3000), (4.04, 12.3), "100/s (planned 150\u20133,000)", "40.0/s (planned 4\u201312)"),
    ],
)
def test_rates_beside_planned_ones(prompt, completion, prompt_text, reply_text) -> None:
    """Those of the prompt only where they are others."""
    assert statistics_line(reply(PlannedRates(prompt, completion))) == (
        f"first token 0.50 s · prompt 50 tokens, {prompt_text} · reply 11 tokens, {reply_text}"
    )


def test_no_rate_is_held_against_nothing() -> None:
    assert "planned" not in statistics_line(reply(None))
    one = statistics_line(reply(PlannedRates((90, 300), (38, 45)), completion_tokens=1))
    assert one.endswith("reply 1 tokens")


def test_drafts_are_counted() -> None:
    plain = reply(None)
    assert plain.usage is not None
    usage = replace(
        plain.usage,
        drafts=3,
        drafted_tokens=9,
        accepted_tokens=6,
        drafted_by_position=(3, 3, 2, 1),
        accepted_by_position=(3, 2, 1, 0),
        draft_gain=1.62,
    )
    drafted = replace(plain, usage=usage)
    line = statistics_line(drafted)
    assert line.endswith(
        "40.0/s · 6 of 9 drafted tokens accepted (100, 67, 50, 0 % by position), 1.6 times as fast"
    )
    assert "drafted" not in statistics_line(plain)
    assert reply_object(drafted)["drafts"] == 3
    assert reply_object(drafted)["drafted_tokens"] == 9
    assert reply_object(drafted)["accepted_tokens"] == 6
    assert reply_object(drafted)["accepted_by_position"] == (3, 2, 1, 0)
    assert reply_object(drafted)["draft_gain"] == 1.62


def test_tokens_of_thoughts_are_named() -> None:
    plain = reply(None)
    assert plain.usage is not None
    thinker = replace(plain, usage=replace(plain.usage, reasoning_tokens=4))
    assert "reply 11 tokens (4 of thoughts), 40.0/s" in statistics_line(thinker)
    assert reply_object(thinker)["reasoning_tokens"] == 4


@pytest.mark.parametrize(
    ("columns", "line"),
    [
        (
            110,
            (
                "first token 0.50 s · prompt 50 tokens, 100/s (planned 150\u20133,000) "
                "· reply 11 tokens, 40.0/s (planned 38\u201345)"
            ),
        ),
        (80, "first token 0.50 s · prompt 50 tokens, 100/s · reply 11 tokens, 40.0/s"),
        (60, "first token 0.50 s · reply 11 tokens, 40.0/s"),
        (30, "reply 11 tokens, 40.0/s"),
        (5, "reply 11 tokens, 40.0/s"),
    ],
)
def test_a_line_loses_what_does_not_fit(columns: int, line: str) -> None:
    both = reply(PlannedRates((150, 3000), (38, 45)))
    assert both.usage is not None
    drafted = replace(both.usage, drafts=3, drafted_tokens=9, accepted_tokens=6)
    assert statistics_line(replace(both, usage=drafted), columns) == line


def test_a_program_gets_the_planned_rates() -> None:
    given = reply_object(reply(PlannedRates((90, 300), (38, 45))))
    assert given["planned_prompt_tokens_per_s"] == (90, 300)
    assert given["planned_completion_tokens_per_s"] == (38, 45)
    assert reply_object(reply(None))["planned_completion_tokens_per_s"] is None


@pytest.mark.parametrize(("value", "text"), [(7561, "7,560"), (45.67, "45.7"), (0.512, "0.512")])
def test_three_digits_of_a_rate(value: float, text: str) -> None:
    assert rounded_rate(value, 3) == text
