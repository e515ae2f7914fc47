"""A kind of layer that nobody has published: in a file of the tests alone, right on every path."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from every_path import EveryPath, PlainCase, Workers, ordered_reference, request_for, source_of
from plain_llama import PlainLlama
from reference import Reference
from running import TOLERANCE, Conversation, Loaded, difference, load
from torch import Tensor

sys.path.append(str(Path(__file__).parents[1] / "plan"))
from test_activations import BASE, measured_and_predicted

from mrs import families
from mrs.architecture import family_registry
from mrs.engine.decode_graph import is_capturable
from mrs.errors import Unsupported
from mrs.formats import FORMATS
from mrs.layers.forward_pass import ForwardShape
from mrs.layers.mixer import Code
from mrs.model.batch import SequenceInput, forward_batch
from mrs.plan.memory.uncounted import uncounted_layer_bytes
from support.model_files import write_model
from support.suites import first

FOLDER = Path(__file__).with_name("made_up_kinds")


@pytest.fixture(scope="module", autouse=True)
def registered() -> Iterator[None]:
    """Python looks for families in the folder, too."""
    caches = (family_registry.families, family_registry._modules)
    families.__path__.append(str(FOLDER))
    for cache in caches:
        cache.cache_clear()
    yield
    families.__path__.remove(str(FOLDER))
    for cache in caches:
        cache.cache_clear()


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    found = Workers(tmp_path_factory.mktemp("workers"), 1, families=[str(FOLDER)])
    yield found
    found.end()


class Windle(PlainLlama):
    """Two layers of three are a plain loop."""

    def mix(self, x: Tensor, at: str) -> Tensor:
        if f"{at}recurrence.keep_bias" not in self.weights:
            return super().mix(x, at)
        keep, take, values, gate = self.product(x, f"{at}recurrence.in").chunk(4, -1)
        keep = (keep + self.weights[f"{at}recurrence.keep_bias"]).sigmoid()
        state = last = torch.zeros_like(keep[0])
        states = []
        for t in range(len(x)):
            state = keep[t] * state + (1 - keep[t]) * take[t].sigmoid() * (values[t] - last)
            last = values[t]
            states.append(state)
        return self.product(torch.stack(states) * gate.tanh(), f"{at}recurrence.out")


class TestWindle(EveryPath):
    case = PlainCase(
        *("windle", "default", {"num_hidden_layers": 4, "channels": 48}, "windle"),
        plain=Windle,
        gguf_like="qwen2",
        gguf_names={
            "recurrence.in.weight": "rec_in.weight",
            "recurrence.keep_bias": "rec_keep_bias",
            "recurrence.out.weight": "rec_out.weight",
        },
        gguf_numbers={"recurrence.channels": 48},
    )
    is_kind_of_layer = True

    def test_its_states_are_restored(self, model: Loaded, truth: Reference) -> None:
        decoder = model.decoder
        first = Conversation(decoder)
        first.feed(truth.prompt[:20])
        saved = [layer.export(0, 20) for layer in first.cache.layers]
        again = Conversation(decoder)
        again.cache.restore(20, [[part] for part in saved])
        fed = [SequenceInput(again.cache, truth.prompt[20:], logits_rows=range(28))]
        with torch.inference_mode():
            logits = decoder.forward(forward_batch(fed), [again.cache])
        assert difference(logits, truth.prompt_logits[20:]) < TOLERANCE


@pytest.fixture(scope="module")
def folder(references) -> Path:
    return references(TestWindle.case).folder


@pytest.mark.parametrize("isq", first(1, ["q8_0", None]))
def test_its_planned_activations_are_close(tmp_path: Path, isq: str | None) -> None:
    config = {**BASE, "model_type": "windle", "channels": 2048}
    folder = write_model(tmp_path, config, "BF16")
    measured, bound = measured_and_predicted(folder, "bf16", isq=isq)
    assert measured <= bound <= 1.15 * measured


def _code(monkeypatch: pytest.MonkeyPatch, folder: Path, **changes: str) -> type:
    """The kind of layer with other code."""
    layer = load(source_of(folder)).description.spec.layers[0]
    kind = type(layer.mixer)
    monkeypatch.setattr(kind, "code", Code(**{**kind.code._asdict(), **changes}))
    return kind


def test_shares_refuse_by_name_what_is_not_said_to_be_shared(monkeypatch, folder: Path) -> None:
    _code(monkeypatch, folder, paths="planned")
    with pytest.raises(Unsupported, match="'GatedRecurrence'"):
        ordered_reference(request_for(folder, None, 0), 2)


def test_shares_refuse_by_name_what_has_no_units(monkeypatch, folder: Path) -> None:
    kind = _code(monkeypatch, folder)
    monkeypatch.setattr(kind, "shard_axes", ())
    with pytest.raises(Unsupported, match="'GatedRecurrence', which has no shard axes"):
        ordered_reference(request_for(folder, None, 0), 2)


def test_a_path_that_is_not_named_costs_room_and_steps_aside(monkeypatch, folder) -> None:
    spec = load(source_of(folder)).description.spec
    shape = ForwardShape(16, 16, 64, FORMATS["F32"], FORMATS["F32"])
    assert is_capturable(spec)
    assert not uncounted_layer_bytes(spec.layers[0], 64, shape)
    _code(monkeypatch, folder, paths="")
    assert not is_capturable(spec)
    assert uncounted_layer_bytes(spec.layers[0], 64, shape)


def test_a_field_that_is_not_named_is_an_error_by_its_name(monkeypatch, folder: Path) -> None:
    _code(monkeypatch, folder, fields="rope")
    with pytest.raises(TypeError, match="GatedRecurrence has a field 'channels'"):
        load(source_of(folder))


def test_a_kind_without_code_is_refused_by_name(monkeypatch, folder: Path) -> None:
    kind = _code(monkeypatch, folder)
    monkeypatch.delattr(kind, "code")
    with pytest.raises(TypeError, match="GatedRecurrence names no `code`"):
        load(source_of(folder))
