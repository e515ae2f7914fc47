"""Activations of 16 bits: what is computed, and what a plan says that they cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mrs.devices.cpu_path import cpu_path
from mrs.devices.measurements import cache_file, host_key, write_entries
from mrs.kernels.cpu.library import is_available
from mrs.kernels.cpu.peaks import residual_shares
from mrs.load.identity import model_identity
from mrs.model.batch import SequenceInput, forward_batch
from mrs.plan.plan import Plan
from mrs.plan.report.document import to_document
from mrs.plan.speed.activation_cost import (
    EXPECTED,
    FILE_NAME,
    ActivationCost,
    activation_cost,
    remember_cost,
)
from mrs.request import ModelSource, PagedRequest, RunRequest
from mrs.run.measure import learn_activation_cost
from mrs.run.model_loader import ModelLoader
from support.model_files import write_demo_like_model
from support.planned_decoder import planned_decoder

pytestmark = pytest.mark.skipif(not is_available(), reason="no native kernels")

IDS = list(range(5, 45))
MEASURED = ActivationCost(0.9, 0.4, is_measured=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_demo_like_model(tmp_path_factory.mktemp("models"), "llama")


def request_of(folder: Path, activations: Any, **changes: Any) -> RunRequest:
    settings = {"isq": "q4k", "cpu": True, "calibration": False, **changes}
    source = ModelSource(str(folder), "safetensors")
    return RunRequest(source, activations=activations, **settings)


def plan_of(folder: Path, activations: Any = 16, **changes: Any) -> Plan:
    return ModelLoader(request_of(folder, activations, **changes)).plan


def logits(folder: Path, activations: Any, *, packs: bool = True) -> Tensor:
    """Of all tokens; without packed weights, torch computes them in float32."""
    request = request_of(folder, activations, paged=PagedRequest(cache_type="f32"))
    planner = ModelLoader(request).planner
    planner.cpu_packs = packs
    plan, cpu = planner.plan(request), [torch.device("cpu")]
    decoder = planned_decoder(planner.checkpoint, planner.description, plan, cpu)[1]
    fed = SequenceInput(decoder.new_cache(64, 64), IDS, logits_rows=range(len(IDS)))
    with torch.inference_mode():
        return decoder.forward(forward_batch([fed]), [fed.cache]).double()


def test_quantized_weights_compute_almost_what_float32_does(model: Path) -> None:
    """The same quantized weights, decoded."""
    exact = logits(model, 8, packs=False)
    by_8, by_16 = (float((logits(model, bits) - exact).norm() / exact.norm()) for bits in (8, 16))
    assert by_16 < 1e-4
    assert by_8 > 1e-3


def test_keys_and_values_stay_in_float32_unless_their_type_is_chosen(small_llama: Path) -> None:
    def cached(activations: int, **changes: Any) -> str:
        return plan_of(small_llama, activations, **changes).cache_format.name

    assert (cached(8), cached(8, isq=None)) == ("F16", "BF16")
    assert (cached(16), cached(16, isq=None)) == ("F32", "F32")
    assert cached(16, paged=PagedRequest(cache_type="f16")) == "F16"


def test_caches_of_other_bits_are_not_taken(model: Path) -> None:
    f32 = PagedRequest(cache_type="f32")
    loaders = [ModelLoader(request_of(model, bits, paged=f32)) for bits in (8, 16)]
    one, other = (model_identity(each.planner.checkpoint, each.plan) for each in loaders)
    assert one != other


def test_prompts_take_twice_as_long_before_anything_is_measured(llama_70b, planner_of) -> None:
    planner, request = planner_of(llama_70b, "cpu=128GiB", isq="q4k", activations=16)
    cost = planner.plan(request).activation_cost
    assert cost is not None
    assert 0.5 <= cost.prompt < 0.55
    assert cost.reply > 0.99
    assert not cost.is_measured


def test_a_plan_says_what_was_measured_here(small_llama: Path) -> None:
    remember_cost("Q4_K", MEASURED)
    plan = plan_of(small_llama)
    assert plan.activation_cost is not None
    assert plan.activation_cost == pytest.approx(MEASURED, abs=0.05)
    assert plan.activation_note.endswith("(measured here)")
    assert to_document(plan)["speed"]["activation_cost"] == plan.activation_cost._asdict()


def test_bits_that_change_nothing_are_named(llama_70b, planner_of, model: Path, caplog) -> None:
    planner, request = planner_of(llama_70b, "cuda:0=80GiB", isq="q4k", activations=16)
    plan = planner.plan(request)
    assert plan.activation_cost is None
    assert "change nothing here" in plan.activation_note
    ModelLoader(request_of(model, 16, isq=None, dtype="f32")).load().close()
    assert any("--activations: 16 bits change nothing" in line for line in caplog.messages)


def test_no_word_of_8_bits(model: Path) -> None:
    plan = plan_of(model, 8)
    assert plan.activation_note == ""
    assert plan.activation_cost is None


@pytest.mark.parametrize("entry", [[0.9], [0.9, "fast"], [0.9, 1.5], [0.0, 0.5], 3, None])
def test_a_damaged_measurement_is_none(entry: object) -> None:
    write_entries(cache_file(FILE_NAME), {f"{host_key()}, {cpu_path()}, Q4_K": entry})
    assert activation_cost("Q4_K") == EXPECTED


def test_the_cost_is_measured_once(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = ModelLoader(request_of(model, 16))
    learn_activation_cost(loader)
    assert loader.plan.activation_cost is not None
    assert loader.plan.activation_cost.is_measured
    monkeypatch.setattr("mrs.kernels.cpu.peaks.residual_shares", lambda name: pytest.fail("twice"))
    learn_activation_cost(ModelLoader(request_of(model, 16)))


@pytest.mark.full
def test_a_prompt_pays_and_a_reply_does_not() -> None:
    shares = residual_shares("Q4_K")
    assert shares is not None
    assert 0.3 < shares[1] < 0.9
    assert shares[1] < shares[0] <= 1
