"""Perplexity and divergence of small models, against transformers in float64."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mrs.errors import UsageError
from mrs.plan.report.measured_losses import measured_loss
from mrs.request import ModelSource, PagedRequest, RunRequest
from mrs.run.evaluation import window_file
from mrs.run.evaluation.evaluate import (
    Evaluation,
    Report,
    Setting,
    Step,
    exact_request,
    settings_of,
)
from mrs.run.evaluation.windows import Work
from mrs.run.model_loader import ModelLoader
from support.model_files import write_demo_like_model

WINDOW = 64
AS_IS = Setting(None, "auto")


def request_of(folder: Path, **changes: Any) -> RunRequest:
    return RunRequest(ModelSource(str(folder), "safetensors"), cpu=True, **changes)


def evaluation(
    request: RunRequest,
    text: Path,
    reference: RunRequest | None,
    *settings: Setting,
    **changes: Any,
) -> Evaluation:
    work = Work(str(text), **{"context_tokens": WINDOW, **changes})
    found = Evaluation(request, reference, settings or (AS_IS,), work)
    found.fetch()
    return found


def log_probabilities(folder: Path, windows: list[list[int]], scored: int) -> torch.Tensor:
    """Those at the positions before scored tokens (windows, scored, vocab), in float64."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
    with torch.inference_mode():
        return model(torch.tensor(windows)).logits[:, -scored - 1 : -1].log_softmax(-1)


def losses(log_probs: torch.Tensor, windows: list[list[int]], scored: int) -> torch.Tensor:
    targets = torch.tensor(windows)[:, -scored:, None]
    return -log_probs.gather(2, targets)[..., 0]


@pytest.mark.parametrize("stride", [None, 20])
def test_figures_are_those_of_float64(
    model: Path, near: Path, text: Path, stride: int | None
) -> None:
    request, other = exact_request(request_of(near)), exact_request(request_of(model))
    own = Setting(None, "f32")
    asked = evaluation(request, text, other, own, stride=stride)
    windows, scored = list(asked.windows), asked.work.scored
    report = asked.run()
    ours, exact = (log_probabilities(each, windows, scored) for each in (near, model))
    found = report.results[0].divergence
    assert found is not None
    assert report.reference_perplexity is not None
    expected = (exact.exp() * (exact - ours)).sum(-1).numpy()
    assert report.results[0].perplexity.value == pytest.approx(
        losses(ours, windows, scored).mean().exp().item(), rel=1e-6
    )
    assert report.reference_perplexity.value == pytest.approx(
        losses(exact, windows, scored).mean().exp().item(), rel=1e-6
    )
    assert found.mean.value == pytest.approx(expected.mean(), rel=1e-4)
    assert found.median.value == pytest.approx(
        np.quantile(expected, 0.5, method="inverted_cdf"), rel=1e-3
    )
    assert found.percentile_99.value == pytest.approx(
        np.quantile(expected, 0.99, method="inverted_cdf"), rel=1e-3
    )
    assert found.most == pytest.approx(expected.max(), rel=1e-3)
    same = (ours.argmax(-1) == exact.argmax(-1)).double().mean().item()
    assert found.same.value == pytest.approx(same, abs=1e-3)
    assert found.mean.error == pytest.approx(
        expected.mean(1).std(ddof=1) / len(windows) ** 0.5, rel=1e-3
    )


def test_the_exact_model_does_not_diverge_from_itself(model: Path, text: Path) -> None:
    exact = exact_request(request_of(model))
    found = evaluation(exact, text, exact, Setting(None, "f32")).run().results[0].divergence
    assert found is not None
    assert found.most < 1e-10
    assert found.same.value == 1


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("cohere", {"logit_scale": 0.25}),
        ("gemma2", {"head_dim": 8, "final_logit_softcapping": 3.0, "query_pre_attn_scalar": 8}),
        ("opt", {"word_embed_proj_dim": 16, "ffn_dim": 64}),
    ],
)
def test_states_before_the_head_make_the_logits_of_the_model(
    tmp_path: Path, text: Path, family: str, changes: dict[str, Any]
) -> None:
    """Also with scales and caps of logits, and with a head of another size than the layers."""
    folder = write_demo_like_model(tmp_path / family, family, **changes)
    exact = exact_request(request_of(folder))
    report = evaluation(exact, text, exact, Setting(None, "f32"), most_windows=2).run()
    found = report.results[0].divergence
    assert found is not None
    assert found.most < 1e-9


def test_finer_formats_diverge_less(model: Path, text: Path) -> None:
    settings = [Setting(isq, "auto") for isq in ("q8_0", "q4_0")]
    request = request_of(model)
    report = evaluation(request, text, exact_request(request), *settings).run()
    means = [each.divergence.mean.value for each in report.results if each.divergence]
    assert 0 < means[0] < means[1] / 10
    sizes = [each.weight_bytes for each in report.results]
    assert sizes[0] > sizes[1]


def test_without_a_reference_there_is_perplexity_alone(model: Path, text: Path) -> None:
    request = request_of(model)
    with_one = evaluation(request, text, exact_request(request)).run()
    alone = evaluation(request, text, None).run()
    assert alone.results[0].divergence is None
    assert alone.reference_perplexity is None
    assert alone.results[0].perplexity == with_one.results[0].perplexity


def test_settings_are_all_pairs(model: Path) -> None:
    request = request_of(model, isq="q4k, Q8_0,none,q4k")
    found = settings_of(request, ["f16", "f32"])
    assert found == [
        Setting(isq, cache) for isq in ("q4k", "q8_0", None) for cache in ("f16", "f32")
    ]
    with_type = replace(request, isq=None, paged=PagedRequest(cache_type="bf16"))
    assert settings_of(with_type, []) == [Setting(None, "bf16")]


class Stop(Exception):
    pass


@pytest.mark.parametrize("last", [2, 7, 11])
def test_an_interruption_loses_no_window(model: Path, text: Path, last: int) -> None:
    request = request_of(model)
    settings = [Setting("q8_0", "auto"), Setting("q4_0", "auto")]

    def asked() -> Evaluation:
        return evaluation(request, text, exact_request(request), *settings, most_windows=4)

    whole = asked().run()

    def stop(step: Step) -> None:
        if step.done == last:
            raise Stop

    with pytest.raises(Stop):
        asked().run(stop)
    steps: list[Step] = []
    resumed = asked().run(steps.append)
    assert _facts(resumed) == _facts(whole)
    assert steps[0].done == min(4, last)
    computed = [
        each
        for before, each in pairwise(steps)
        if each.model == before.model and each.done == before.done + 1
    ]
    assert len(computed) == 12 - last
    assert list(window_file.folder().iterdir()) == []


def _facts(report: Report) -> Any:
    return report.to_json()


def test_another_text_or_format_goes_on_with_nothing(model: Path, text: Path) -> None:
    request = request_of(model)

    def stop(step: Step) -> None:
        if step.done == 3:
            raise Stop

    with pytest.raises(Stop):
        evaluation(request, text, exact_request(request), most_windows=4).run(stop)
    steps: list[Step] = []
    evaluation(request, text, exact_request(request), most_windows=3).run(steps.append)
    assert steps[0].done == 0


def test_a_reference_with_other_tokens_is_refused(model: Path, text: Path, tmp_path: Path) -> None:
    other = write_demo_like_model(tmp_path / "other", "llama", vocab_size=3000)
    with pytest.raises(UsageError, match="the reference 3,000"):
        evaluation(request_of(model), text, request_of(other))


def test_windows_beyond_the_context_are_refused(model: Path, text: Path) -> None:
    with pytest.raises(UsageError, match="windows of 2048 tokens"):
        evaluation(request_of(model), text, None, context_tokens=2048)


def test_plans_know_what_was_measured(model: Path, text: Path) -> None:
    request = request_of(model)
    report = evaluation(
        request, text, exact_request(request), Setting("q4_0", "auto"), Setting("q8_0", "f32")
    ).run()
    facts = ModelLoader(request).plan.model
    found, of_result = measured_loss(facts, "q4_0"), report.results[0].divergence
    assert found is not None
    assert of_result is not None
    assert found.perplexity_change == of_result.change.value
    assert found.divergence == of_result.mean.value
    assert measured_loss(facts, "q8_0") is None  # another type of keys than a plain run has
    assert measured_loss(facts, None) is None


def test_longer_windows_are_read_in_pieces(model: Path, text: Path) -> None:
    """More than the most tokens of one forward pass."""
    exact = exact_request(request_of(model))
    asked = evaluation(exact, text, None, Setting(None, "f32"), context_tokens=700, most_windows=1)
    windows, scored = list(asked.windows), asked.work.scored
    report = asked.run()
    expected = losses(log_probabilities(model, windows, scored), windows, scored)
    assert report.results[0].perplexity.value == pytest.approx(
        expected.mean().exp().item(), rel=1e-6
    )
