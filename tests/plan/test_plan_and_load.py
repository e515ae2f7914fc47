"""What is planned is what is loaded: the same bytes, the same line, even when memory shrinks."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import mrs
import mrs_cli
from mrs.devices.bandwidth import remember_bandwidth
from mrs.devices.device import Device
from mrs.devices.measurements import host_key
from mrs.engine.draft_pace import DraftPace
from mrs.errors import DoesNotFit, UsageError
from mrs.plan.calibration import corrections
from mrs.plan.memory.breakdown import Correction
from mrs.plan.report.document import dumps, to_document
from mrs.plan.speed.draft_gain import DraftCost
from mrs.request import ModelSource, PagedRequest, RunRequest, Sampling
from mrs.run.measure import measure
from mrs.run.model_loader import ModelLoader
from support.draft_pace import let_steps_take_as_planned
from support.hub_server import Blob, HubServer
from support.model_files import LLAMA_70B, shards, write_model
from support.suites import first

TINY: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 300,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
}


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A model that can be loaded, with a tokenizer of one token a byte."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    folder = write_model(tmp_path / "tiny", TINY, "BF16")
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def request(folder: Path, **changes: Any) -> RunRequest:
    return RunRequest(ModelSource(str(folder), "safetensors"), max_seq_len=1024, **changes)


@pytest.fixture(params=["", "cpu=512KiB,cpu=1MiB", "cpu=600MiB,cpu=600MiB"])
def devices(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("MRS_LOGICAL_DEVICES", request.param)
    return request.param


def test_a_run_says_what_its_plan_said(tiny: Path, devices: str) -> None:
    wish = request(tiny)
    planned = ModelLoader(wish).plan
    loaded = ModelLoader(wish).load()
    assert loaded.summary == planned.summary
    assert loaded.plan.layer_devices == planned.layer_devices
    loaded.close()


#: A chunk of a prompt fills it, so that the run has what the plan counts: a full chunk at its end.
SMALL_POOL = PagedRequest(context_tokens=512, block_tokens=16)
LARGE_POOL = PagedRequest(memory_mib=3, block_tokens=32, cache_type="f32")


@pytest.mark.few(1)
@pytest.mark.values
@pytest.mark.parametrize(
    "wishes",
    first(
        3,
        [
            {},
            {"isq": "q8_0"},
            {"paged": SMALL_POOL},
            {"dtype": "f32"},
            {"max_batch_size": 2},
            {"paged": LARGE_POOL},
        ],
    ),
)
def test_predicted_and_measured(tiny: Path, devices: str, wishes: dict[str, Any]) -> None:
    wish = request(tiny, **wishes)
    result = measure(ModelLoader(wish))
    rows = {row.term: row for row in result.rows}
    assert set(rows) == {
        "weights", "KV cache", "activations", "program", "unexplained", "process",
    }  # fmt: skip
    assert rows["weights"].measured_bytes == rows["weights"].predicted_bytes
    assert rows["KV cache"].measured_bytes == rows["KV cache"].predicted_bytes
    predicted, measured = rows["activations"].predicted_bytes, rows["activations"].measured_bytes
    assert measured is not None
    assert measured <= predicted <= 1.15 * measured
    assert result.decode_tokens_per_s > 0


@pytest.mark.full
def test_what_was_measured_is_remembered(tiny: Path) -> None:
    wish = request(tiny)
    loader = ModelLoader(wish)
    before = loader.plan
    assert not before.corrected
    result = measure(loader)
    after = ModelLoader(wish).plan
    assert after.corrected
    measured = next(row for row in result.rows if row.term == "activations").measured_bytes
    assert after.breakdowns[-1].activations.expected == pytest.approx(measured, rel=0.01)
    assert not ModelLoader(replace(wish, calibration=False)).plan.corrected
    hypothetical = replace(wish, devices=("cpu=4GiB",))
    assert not ModelLoader(hypothetical).plan.corrected
    again = measure(ModelLoader(wish))
    ratio = next(iter(again.corrections.values())).activation_ratio
    assert ratio == pytest.approx(
        next(iter(result.corrections.values())).activation_ratio, rel=1e-3
    )


def test_a_faster_run_is_remembered(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mrs.plan.speed.roofline.MOST_CACHED_BYTES", 0)
    wish = request(tiny)
    cpu = ModelLoader(wish).plan.devices[-1]
    remember_bandwidth(cpu, 1e3)
    loader = ModelLoader(wish)
    slow = loader.plan
    result = measure(loader)
    assert result.decode_tokens_per_s > slow.speed.decode.high
    after = ModelLoader(wish).plan
    assert after.devices[-1].bandwidth_bytes_per_s == pytest.approx(
        slow.speed.read_bytes(0) * result.decode_tokens_per_s
    )


@pytest.mark.parametrize(
    "content",
    ["", "[]", json.dumps({host_key(): 3}), json.dumps({host_key(): {"activation_ratio": 9}})],
)
def test_a_damaged_memory_remembers_nothing(tmp_path: Path, content: str) -> None:
    path = tmp_path / "calibration.json"
    path.write_text(content)
    cpu = Device("cpu", 0, "CPU", 1, 1, "cpu")
    assert corrections([cpu], path) == {}


def test_a_correction_moves_layers(llama_70b: Path, planner_of) -> None:
    """More activations leave room for fewer layers."""
    planner, wish = planner_of(llama_70b, "cuda:0=80GiB", "cpu=256GiB")
    plain = planner.plan(wish)
    planner.corrections = {"cuda:0": Correction(50.0, 1 << 29)}
    corrected = planner.plan(wish)
    assert corrected.breakdowns[0].layers < plain.breakdowns[0].layers
    assert corrected.breakdowns[0].total.expected <= corrected.breakdowns[0].available_bytes
    assert corrected.breakdowns[0].runtime.expected == 1 << 29


def shrinking(monkeypatch: pytest.MonkeyPatch, sizes: list[int]) -> None:
    """The one accelerator, a logical one, has less at every look; the CPU stays as it is."""

    def probe(**_: object) -> list[Device]:
        size = sizes.pop(0) if len(sizes) > 1 else sizes[0]
        return [
            Device("cuda", 0, "logical", 4 << 30, size, "cpu"),
            Device("cpu", 0, "CPU", 4 << 30, 4 << 30, "cpu"),
        ]

    monkeypatch.setattr("mrs.run.planned_model.probe_devices", probe)


def test_less_memory_at_loading_plans_again(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shrinking(monkeypatch, [2 << 30, 1 << 20])
    loaded = ModelLoader(request(tiny)).load()
    assert set(loaded.plan.layer_devices) == {1}
    assert "cpu (4 layers)" in loaded.summary


def test_less_memory_than_a_given_plan_needs(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shrinking(monkeypatch, [2 << 30])
    path = tmp_path / "plan.json"
    path.write_text(dumps(to_document(ModelLoader(request(tiny)).plan)))
    assert ModelLoader(request(tiny, plan_file=str(path))).load().plan.layer_devices == (0, 0, 0, 0)
    shrinking(monkeypatch, [2 << 30, 1 << 20])
    with pytest.raises(DoesNotFit, match="no longer fits"):
        ModelLoader(request(tiny, plan_file=str(path))).load()


def test_loading_refuses_what_does_not_fit(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shrinking(monkeypatch, [1 << 20])
    with pytest.raises(DoesNotFit):
        ModelLoader(request(tiny, cpu_spill=False)).load()


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "HF_HUB_CACHE", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with HubServer() as server:
        monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
        monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
        yield server


def test_a_remote_plan_asks_for_no_weight(hub: HubServer, llama_70b: Path, planner_of) -> None:
    files = {name: Blob(head, size) for name, head, size in shards(LLAMA_70B, 30)}
    hub.add("someone/big", {**files, "config.json": json.dumps(LLAMA_70B).encode()})
    wish = RunRequest(
        ModelSource("someone/big", "safetensors"), devices=("cuda:0=80GiB", "cpu=128GiB")
    )
    plan = ModelLoader(wish).plan
    assert plan.model.file_bytes > 141e9
    assert hub.body_bytes < 20e6
    for served in hub.log:
        name = served.path.partition("?")[0].rpartition("/")[2]
        if name in files and served.place == "cdn":
            assert served.end is not None
            assert served.begin is not None
            asked = served.end - served.begin
            assert served.begin < len(files[name].head)
            assert asked < 2e6
    planner, local = planner_of(llama_70b, "cuda:0=80GiB", "cpu=128GiB")
    assert planner.plan(local).layer_devices == plan.layer_devices


def test_planning_leaves_torch_alone(tiny: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from mrs_cli.app import main; "
        f"code = main(['plan', '--dry-run', 'plain', '-m', {str(tiny)!r}]); "
        "heavy = {'torch', 'numpy', 'tokenizers', 'transformers', 'huggingface_hub', 'jinja2', "
        "'mrs.families.vision.llava'}; "
        "print('HEAVY', sorted(heavy & set(sys.modules))); sys.exit(code)"
    )
    roots = [str(Path(package.__file__ or "").parents[1]) for package in (mrs, mrs_cli)]
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": ":".join(roots), "HOME": str(tmp_path), "PATH": ""},
    )
    assert "HEAVY []" in done.stdout
    assert "torch" not in done.stderr


@pytest.mark.needs("a CUDA device")
def test_on_a_gpu(tiny: Path) -> None:
    wish = request(tiny)
    loader = ModelLoader(wish)
    plan = loader.plan
    assert plan.devices[0].kind == "cuda"
    rows = {row.term: row for row in measure(loader).rows}
    assert rows["weights"].measured_bytes == rows["weights"].predicted_bytes
    assert rows["KV cache"].measured_bytes == rows["KV cache"].predicted_bytes
    assert rows["activations"].measured_bytes <= 1.25 * rows["activations"].predicted_bytes


def test_a_draft_model_is_planned_and_loaded(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = ModelLoader(request(tiny)).plan
    loader = ModelLoader(request(tiny, draft_model=str(tiny)))
    plan = loader.plan
    found, draft = plan.breakdowns[0], plan.breakdowns[0].draft
    assert draft is not None
    assert ModelLoader(request(tiny, draft_model=str(tiny), speculate="off")).plan.draft is None
    assert draft.weight_bytes == found.weight_bytes == alone.breakdowns[0].weight_bytes
    assert found.total == alone.breakdowns[0].total + draft.total
    assert found.free_bytes + draft.total.high < plan.devices[0].available_bytes
    document = json.loads(dumps(to_document(plan)))
    assert document["draft_model"]["model_id"] == str(tiny)
    assert document["devices"][0]["bytes"]["draft_model"]["expected"] == draft.total.expected
    (tmp_path / "plan.json").write_text(json.dumps(document))
    again = request(tiny, draft_model=str(tiny), plan_file=str(tmp_path / "plan.json"))
    assert ModelLoader(again).plan.breakdowns[0].total.high == found.total.high
    model = loader.load()
    let_steps_take_as_planned(monkeypatch)
    model.engine._engine.scheduler.drafter.pace = DraftPace(DraftCost(0))  # as if it were smaller
    sampling = Sampling(temperature=0, max_tokens=30, frequency_penalty=0, presence_penalty=0)
    *_, end = model.stream_completion("abc", sampling)
    model.close()
    assert end.usage.accepted_tokens > 10, "the draft model is the model itself"


def test_a_draft_model_that_leaves_too_little_memory_does_not_fit(tiny: Path) -> None:
    alone = ModelLoader(request(tiny, devices=("cuda:0=24GiB",))).plan
    least = alone.breakdowns[0].needed_bytes + alone.breakdowns[0].reserve_bytes
    devices = (f"cuda:0={least // 2**20 + 1}MiB", "cpu=1MiB")
    assert not ModelLoader(request(tiny, devices=devices, draft_model=str(tiny))).plan.fits


def test_a_draft_model_with_other_tokens_is_refused(tiny: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(tiny, other)
    tokens = json.loads((other / "tokenizer.json").read_text())
    vocabulary = tokens["model"]["vocab"]
    first, second = list(vocabulary)[7:9]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (other / "tokenizer.json").write_text(json.dumps(tokens))
    with pytest.raises(UsageError, match=re.escape(f"token 7 of the draft model is {second!r}")):
        ModelLoader(request(tiny, draft_model=str(other))).load()
