"""`mrs fit`: what fits which machine, and which format is proposed there."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest

from mrs.errors import UsageError
from mrs.plan.largest import largest_with_spare
from mrs.plan.report.fit import MachineFit, fit_here, fit_machine, untried
from mrs.units import GIB


@pytest.fixture
def fit(planner_of, llama_70b: Path) -> Any:
    planner, request = planner_of(llama_70b, "cpu=1GiB")

    def on(text: str) -> MachineFit:
        return fit_machine(text, planner, request, every_format=True)

    return on


def best(fit: MachineFit) -> str | None:
    return None if fit.best is None else fit.formats[fit.best].isq


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("machine", "isq"),
    [
        ("RTX 4090", None),
        ("RTX 5090", "q3k"),
        ("2x RTX 3090", "q4k"),
        ("M4 Max 64GB", "q5k"),
        ("H100", "q8_0"),
        ("M2 Ultra 192GB", "none"),
        ("RTX 4090 + cpu=128GiB", "q4k"),
    ],
)
def test_the_format_that_is_proposed(fit: Any, machine: str, isq: str | None) -> None:
    """The finest that fits whole, but none that loses much where layers on a CPU avoid that."""
    assert best(fit(machine)) == isq


def test_what_is_missing_is_said_with_the_cards_that_have_it(fit: Any) -> None:
    found = fit("RTX 5090")
    assert re.fullmatch(r"q4k needs [0-9.]+ GiB more", found.needs)
    assert [each.machine for each in found.remedies] == ["2x RTX 5090", "RTX 5090 + cpu=16GiB"]
    assert all(each.plan.fits for each in found.remedies)
    assert not fit("H100").needs


def test_a_machine_without_a_cpu_has_no_layers_there(fit: Any) -> None:
    assert all(not each.plan.spilled_layers for each in fit("RTX 4090").formats)
    assert any(each.plan.spilled_layers for each in fit("RTX 4090 + cpu=64GiB").formats)


def test_the_longest_context_fits_and_a_longer_one_does_not(planner_of, llama_70b: Path) -> None:
    planner, request = planner_of(llama_70b, "cuda:0=44GiB", "cpu=16GiB", cpu_spill=False)
    found = fit_here(planner, request)
    chosen = found.formats[found.best or 0]
    assert chosen.isq == "q4k"
    assert chosen.longest_tokens is not None
    for tokens, fits in ((0, True), (512, False)):
        longer = planner_of(
            llama_70b,
            "cuda:0=44GiB",
            "cpu=16GiB",
            cpu_spill=False,
            isq="q4k",
            max_seq_len=chosen.longest_tokens + tokens,
        )
        assert longer[0].plan(longer[1]).fits == fits


def test_larger_models_lose_more_and_finer_formats_less(fit: Any) -> None:
    losses = [each.loss.share for each in fit("H100").formats]
    assert losses == sorted(losses)
    assert losses[-1] == 0.687


def test_the_first_token_waits_for_a_prompt(fit: Any) -> None:
    found = fit("H100")
    chosen = found.formats[found.best]
    assert chosen.first_token_s == pytest.approx(2000 / chosen.plan.speed.prompt_of(2000).expected)
    assert chosen.plan.total_weight_bytes > 60 * GIB


def test_an_unknown_machine_is_named(fit: Any) -> None:
    with pytest.raises(UsageError) as caught:
        fit("RTX 4091")
    assert "--on" in str(caught.value)


def test_what_has_not_run_anywhere_is_said_once(fit: Any) -> None:
    fits = [fit(machine) for machine in ("H100", "RX 7900 XTX", "MI300X", "Arc Pro B60")]
    lines = untried(fits)
    assert len(lines) == 2
    assert "AMD" in lines[0]
    assert "does not run on Intel" in lines[1]
    assert not untried(fits[:1])


def test_the_number_with_room_is_found_in_few_steps_even_if_the_line_bends() -> None:
    chance = random.Random(3)
    for _ in range(300):
        high, step = chance.randrange(1000, 140_000), 256
        limit = chance.randrange(0, high + 1000)
        bend, slope = chance.randrange(1, high), chance.uniform(0.01, 100.0)
        asked: list[int] = []

        def spare(
            n: int, limit: int = limit, bend: int = bend, slope: float = slope, asked: Any = asked
        ) -> float:
            asked.append(n)
            over = n - limit
            return -over * (slope if n > bend else 1.0) if over <= 0 else -over * slope - 1

        start = min(512, limit // step * step)
        found = largest_with_spare(spare, start, high, step)
        assert found == (high if limit >= high else max(start, limit // step * step))
        assert len(asked) <= 26
