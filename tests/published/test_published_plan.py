"""The plan of the published model against what is allocated and measured."""

from __future__ import annotations

from pathlib import Path

import pytest
from conversations import request_for

from mrs.run.loaded_model import LoadedModel
from mrs.run.measure import measure
from mrs.run.model_loader import ModelLoader


def test_predicted_and_measured(published: Path) -> None:
    rows = {row.term: row for row in measure(ModelLoader(request_for(published))).rows}
    for term in ("weights", "KV cache"):
        assert rows[term].measured_bytes == rows[term].predicted_bytes
    activations = rows["activations"]
    assert activations.measured_bytes is not None
    assert activations.measured_bytes <= activations.predicted_bytes
    assert activations.predicted_bytes <= 1.15 * activations.measured_bytes


@pytest.mark.parametrize("max_batch_size", [1, 4])
def test_weights_of_the_plan_are_those_of_the_file(published: Path, max_batch_size: int) -> None:
    """Interleaved rows take a little more than the file; nothing is stored twice."""
    loader = ModelLoader(request_for(published, max_batch_size=max_batch_size))
    (terms,) = loader.plan.breakdowns
    stored_bytes = loader.planner.checkpoint.total_bytes
    assert stored_bytes <= terms.weight_bytes <= 1.1 * stored_bytes


def test_what_is_loaded_is_what_was_planned(loaded: LoadedModel, published: Path) -> None:
    assert loaded.summary == ModelLoader(request_for(published)).plan.summary
