"""A kind of layer that nobody has published: in a file of the tests alone, right on every path."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from made_up_families import CONFIG, PlainLlama, write_gguf
from running import Conversation, check_planned_bytes, difference, load
from safetensors.torch import save_file
from torch import Tensor

sys.path[:0] = [str(Path(__file__).parents[1] / name) for name in ("distributed", "plan")]

from clusters import Workers, cluster_decoder, engine_of, request_for, single_decoder
from ordered_reference import ordered_reference
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
from mrs.request import ModelSource
from support.engines import Asked, generate
from support.model_files import write_model
from support.suites import first
from support.tiny_decoders import GREEDY

FOLDER = Path(__file__).with_name("made_up_kinds")
CHANNELS, LAYERS, EVERY = 48, CONFIG["num_hidden_layers"], 3
IDS = [(7 * n * n + 3 * n) % 160 for n in range(40)]
PROMPT = [7, 8, 9, 10, 11, 12] * 4


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


def _shapes() -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, inner, rows = 64, CONFIG["intermediate_size"], CONFIG["vocab_size"]
    yield from (("model.embed_tokens.weight", (rows, hidden)), ("lm_head.weight", (rows, hidden)))
    yield "model.norm.weight", (hidden,)
    for index in range(LAYERS):
        at = f"model.layers.{index}."
        if index % EVERY == 2:
            for name, size in (("q", 64), ("k", 32), ("v", 32), ("o", 64)):
                yield f"{at}self_attn.{name}_proj.weight", (size, hidden)
        else:
            yield f"{at}recurrence.in.weight", (4 * CHANNELS, hidden)
            yield f"{at}recurrence.keep_bias", (CHANNELS,)
            yield f"{at}recurrence.out.weight", (hidden, CHANNELS)
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield f"{at}{name}.weight", (hidden,)
        for name in ("gate", "up"):
            yield f"{at}mlp.{name}_proj.weight", (inner, hidden)
        yield f"{at}mlp.down_proj.weight", (hidden, inner)


@pytest.fixture(scope="module")
def tensors() -> dict[str, Tensor]:
    torch.manual_seed(6)
    return {
        name: torch.randn(shape) * 0.12 if len(shape) > 1 else 1 + 0.5 * torch.randn(shape)
        for name, shape in _shapes()
    }


@pytest.fixture(scope="module")
def folder(tensors: Mapping[str, Tensor], tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("windle")
    config = {**CONFIG, "model_type": "windle", "channels": CHANNELS}
    (made / "config.json").write_text(json.dumps(config))
    save_file(dict(tensors), made / "model.safetensors")
    return made


@pytest.fixture(scope="module")
def truth(tensors: Mapping[str, Tensor]) -> Tensor:
    """Logits (T, V) of IDS by a plain loop in float64."""
    llama = PlainLlama(tensors, len(IDS))

    def recurrence(y: Tensor, at: str) -> Tensor:
        keep, take, values, gate = llama.product(y, f"{at}in").chunk(4, -1)
        keep = (keep + llama.weights[f"{at}keep_bias"]).sigmoid()
        state = last = torch.zeros(CHANNELS).double()
        states = []
        for t in range(len(y)):
            state = keep[t] * state + (1 - keep[t]) * take[t].sigmoid() * (values[t] - last)
            last = values[t]
            states.append(state)
        return llama.product(torch.stack(states) * gate.tanh(), f"{at}out")

    x = llama.weights["model.embed_tokens.weight"][IDS]
    for index in range(LAYERS):
        at = f"model.layers.{index}."
        y = llama.norm(x, f"{at}input_layernorm")
        if index % EVERY == 2:
            attended = llama.attend(y, at).transpose(0, 1).flatten(1)
            x = x + llama.product(attended, f"{at}self_attn.o_proj")
        else:
            x = x + recurrence(y, f"{at}recurrence.")
        y = llama.norm(x, f"{at}post_attention_layernorm")
        x = x + llama.mlp(y, *(f"{at}mlp.{n}_proj" for n in ("gate", "up", "down")))
    return llama.product(llama.norm(x, "model.norm"), "lm_head")


@pytest.mark.parametrize("chunk_tokens", [512, 7, 1])
@pytest.mark.parametrize(
    ("dtype", "isq", "tolerance"),
    [("f32", None, 1e-4), ("bf16", None, 0.04), ("bf16", "q8_0", 0.08)],
)
def test_it_is_the_plain_loop(folder, truth, dtype, isq, tolerance, chunk_tokens) -> None:
    model = load(ModelSource(str(folder), "safetensors"), dtype, isq=isq)
    assert difference(Conversation(model.decoder, chunk_tokens).feed(IDS), truth) < tolerance


@pytest.mark.parametrize("isq", [None, "q8_0"])
def test_its_gguf_file_gives_the_same(folder, tensors, truth, tmp_path, isq) -> None:
    path = tmp_path / "windle.gguf"
    names = {"recurrence.": "rec_"}
    write_gguf(path, "windle", tensors, names, **{"recurrence.channels": CHANNELS})
    model = load(ModelSource(str(path), "gguf"), "f32", isq=isq)
    assert difference(Conversation(model.decoder).feed(IDS), truth) < (0.08 if isq else 1e-4)
    check_planned_bytes(model)


@pytest.mark.parametrize(("dtype", "isq"), [("f32", None), ("bf16", None), ("bf16", "q8_0")])
def test_planned_bytes_are_allocated(folder: Path, dtype, isq) -> None:
    model = load(ModelSource(str(folder), "safetensors"), dtype, isq=isq)
    check_planned_bytes(model)


@pytest.mark.parametrize("isq", first(1, ["q8_0", None]))
def test_its_planned_activations_are_close(tmp_path: Path, isq: str | None) -> None:
    config = {**BASE, "model_type": "windle", "channels": 2048}
    folder = write_model(tmp_path, config, "BF16")
    measured, bound = measured_and_predicted(folder, "bf16", isq=isq)
    assert measured <= bound <= 1.15 * measured


def test_its_states_are_restored_and_sequences_do_not_mix(folder: Path) -> None:
    decoder = load(ModelSource(str(folder), "safetensors")).decoder
    first, second = Conversation(decoder), Conversation(decoder)
    whole = first.feed(IDS)
    second.feed(IDS[:20])
    saved = [layer.export(0, 20) for layer in second.cache.layers]
    again, other = (
        Conversation(decoder, space=second.space),
        Conversation(decoder, space=second.space),
    )
    again.cache.restore(20, [[part] for part in saved])
    fed = [
        SequenceInput(cache, ids, logits_rows=range(len(ids)))
        for cache, ids in ((again.cache, IDS[20:]), (other.cache, IDS[:9]))
    ]
    with torch.inference_mode():
        together = decoder.forward(forward_batch(fed), [again.cache, other.cache])
    assert difference(together[:20], whole[20:]) < 1e-5
    assert difference(together[20:], whole[:9]) < 1e-5


def test_prefixes_come_from_snapshots_of_its_states(folder: Path) -> None:
    decoder = single_decoder(request_for(folder, None, 0, dtype="f32"))
    settings = replace(GREEDY, max_tokens=12)
    engine = engine_of(decoder)
    reply = generate(engine, IDS, settings)
    turn = IDS + reply + [3, 1, 4]
    plain = generate(engine_of(decoder, prefix_cache_n=0), turn, settings)
    asked = Asked.of(engine, turn, settings)
    assert asked.finish() == plain
    assert asked.sequence.num_cached_tokens >= len(IDS)


class WrongAtTimes:
    """Drafts a known text, every fourth token of it changed."""

    def __init__(self, text: list[int]) -> None:
        self._text = text

    def draft(self, token_ids: list[int], most_tokens: int) -> list[int]:
        start = len(token_ids)
        some = enumerate(self._text[start:][:most_tokens], start)
        return [(token + (index % 4 == 0)) % 160 for index, token in some]

    def learn(self, drafted: int, accepted: int) -> None:
        """Nothing to learn."""


def test_rejected_drafts_are_rolled_back(folder: Path) -> None:
    decoder = single_decoder(request_for(folder, None, 0, dtype="f32"))
    settings = replace(GREEDY, max_tokens=50)
    plain = generate(engine_of(decoder, speculate=False), PROMPT, settings)
    engine = engine_of(decoder, speculate=True)
    asked = Asked.of(engine, PROMPT, settings)
    asked.sequence.lookup = WrongAtTimes(PROMPT + plain)  # type: ignore[assignment]
    assert asked.finish() == plain
    assert 10 < engine.stats.accepted_tokens < engine.stats.drafted_tokens


@pytest.mark.full
def test_two_processes_compute_it_by_layers_and_by_shares(folder, truth, tmp_path) -> None:
    for changes in ({}, {"group_size": 2}):
        workers = Workers(tmp_path, 1, families=[str(FOLDER)])
        try:
            request = request_for(folder, workers.port, 1, dtype="f32")
            if changes:
                request = replace(request, cluster=replace(request.cluster, **changes))
            with cluster_decoder(request) as (decoder, _):
                assert difference(Conversation(decoder).feed(IDS), truth) < 1e-4
        finally:
            workers.end()


def _code(monkeypatch: pytest.MonkeyPatch, folder: Path, **changes: str) -> type:
    """The kind of layer with other code."""
    layer = load(ModelSource(str(folder), "safetensors")).description.spec.layers[0]
    kind = type(layer.mixer)
    monkeypatch.setattr(kind, "code", Code(**{**kind.code._asdict(), **changes}))
    return kind


@pytest.mark.parametrize("changes", [{"paths": "planned"}, {"fields": ""}])
def test_shares_refuse_by_name_what_is_not_said_to_be_shared(monkeypatch, folder, changes) -> None:
    _code(monkeypatch, folder, **changes)
    with pytest.raises(Unsupported, match="'GatedRecurrence'"):
        ordered_reference(request_for(folder, None, 0), 2)


def test_shares_refuse_by_name_what_has_no_units(monkeypatch, folder: Path) -> None:
    kind = _code(monkeypatch, folder)
    monkeypatch.setattr(kind, "shard_axes", ())
    with pytest.raises(Unsupported, match="'GatedRecurrence', which has no shard axes"):
        ordered_reference(request_for(folder, None, 0), 2)


def test_a_field_that_is_not_named_costs_room_and_the_fast_paths(monkeypatch, folder) -> None:
    spec = load(ModelSource(str(folder), "safetensors")).description.spec
    shape = ForwardShape(16, 16, 64, FORMATS["F32"], FORMATS["F32"])
    assert is_capturable(spec)
    assert not uncounted_layer_bytes(spec.layers[0], 64, shape)
    _code(monkeypatch, folder, fields="rope")
    assert not is_capturable(spec)
    assert uncounted_layer_bytes(spec.layers[0], 64, shape)


def test_a_kind_without_code_is_refused_by_name(monkeypatch, folder: Path) -> None:
    kind = _code(monkeypatch, folder)
    monkeypatch.delattr(kind, "code")
    with pytest.raises(TypeError, match="GatedRecurrence names no `code`"):
        load(ModelSource(str(folder), "safetensors"))
