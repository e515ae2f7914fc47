"""What a run shows of the machine, and what later estimates make of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from mrs.devices.bandwidth import is_host_known
from mrs.devices.device import Device
from mrs.devices.measurements import cache_file, host_key, write_entries
from mrs.devices.processor import OPERATIONS_PER_CYCLE, expected_bandwidth, operations_per_s
from mrs.events import Finished
from mrs.plan.cost import Work
from mrs.plan.learn_speed import learn_speed
from mrs.plan.speed.learnt import Learnt, Pace, learn
from mrs.plan.speed.rates import device_speed
from mrs.plan.speed.roofline import SpeedEstimate
from mrs.request import Message, ModelSource, RunRequest, Sampling
from mrs.run.model_loader import ModelLoader

GIB = 1024**3
CPU = Device("cpu", 0, "CPU", 64 * GIB, 64 * GIB, "cpu")
LARGE = Work(weight_bytes=GIB, tensors=150, weights=10**9, head_weights=10**7)
SMALL = Work(weight_bytes=10**6, tensors=150, weights=10**6, head_weights=10**5)


def estimate(work: Work, kind: str = "Q4_K", device: Device = CPU) -> SpeedEstimate:
    speed = device_speed(device, "Q4_K", kind, 0.5625)
    return SpeedEstimate((work,), (speed,), 512, context_tokens=4096, weights_kind=kind)


def run(work: Work, slower: float = 1.0) -> Pace:
    """A run that takes so many times what the middle of the estimate expects."""
    speed = estimate(work)
    pace = Pace()
    pace.add_step(slower / speed.decode.expected)
    pace.add_prompt(512, slower * 512 / speed.prompt.expected)
    return pace


@pytest.mark.parametrize("work", [LARGE, SMALL])
@pytest.mark.parametrize("slower", [0.7, 1.0, 1.5])
def test_after_one_run_ranges_are_narrow_and_true(work: Work, slower: float) -> None:
    pace = run(work, slower)
    assert pace.step_s is not None
    learn(estimate(work), pace)
    after = estimate(work)
    assert after.decode.low < 1 / pace.step_s < after.decode.high < 1.5 * after.decode.low
    assert after.prompt.low < 512 / pace.prompt_s < after.prompt.high < 2 * after.prompt.low


def test_a_step_that_is_faster_than_either_part_of_it_teaches_both() -> None:
    balanced = Work(weight_bytes=7 * 10**6, tensors=150, weights=7 * 10**6, head_weights=10**5)
    pace = run(balanced, 0.35)
    assert pace.step_s is not None
    learn(estimate(balanced), pace)
    after = estimate(balanced).decode
    assert after.low < 1 / pace.step_s < after.high < 1.5 * after.low


def test_before_any_run_ranges_are_wider_yet_say_something() -> None:
    measured = replace(CPU, bandwidth_bytes_per_s=50e9, bandwidth_source="measured")
    before = estimate(LARGE, device=measured)
    assert 1.5 * before.decode.low < before.decode.high < 1.8 * before.decode.low
    assert 2 * before.prompt.low < before.prompt.high < 4.1 * before.prompt.low


def test_a_slower_run_later_changes_nothing() -> None:
    """Other programs make a run slower, never faster."""
    learn(estimate(LARGE), run(LARGE))
    known = Learnt.read()
    pace = Pace()
    pace.add_step(1.2 / estimate(LARGE).decode.low)
    pace.add_prompt(512, 1.2 * 512 / estimate(LARGE).prompt.low)
    learn(estimate(LARGE), pace)
    assert Learnt.read() == known


@pytest.mark.parametrize("slower", [0.01, 20.0])
def test_what_cannot_be_is_not_learnt(slower: float) -> None:
    learn(estimate(LARGE), run(LARGE, slower))
    assert Learnt.read() == Learnt()
    assert not cache_file("speed.json").exists()


def test_other_weights_and_given_bandwidths_are_left_alone() -> None:
    before = estimate(LARGE, "BF16")
    given = replace(CPU, bandwidth_bytes_per_s=5e9, bandwidth_source="given")
    read = estimate(LARGE, device=given).devices[0].read_bytes_per_s
    learn(estimate(LARGE), run(LARGE))
    assert estimate(LARGE, "BF16") == before
    assert estimate(LARGE, device=given).devices[0].read_bytes_per_s == read


def test_two_devices_teach_nothing() -> None:
    speed = estimate(LARGE)
    both = replace(speed, work=(LARGE, LARGE), devices=speed.devices * 2)
    learn(both, run(LARGE))
    assert Learnt.read() == Learnt()


def test_short_prompts_teach_nothing_of_arithmetic() -> None:
    pace = Pace()
    pace.add_prompt(20, 20 / estimate(LARGE).prompt_of(20).expected)
    learn(estimate(LARGE), pace)
    assert Learnt.read() == Learnt()


@pytest.mark.parametrize(
    "entry", [3, [], {"read_bytes_per_s": 1}, {"step_seconds": {"Q4_K": -1, "BF16": "x"}}]
)
def test_a_damaged_file_says_nothing(entry: object) -> None:
    write_entries(cache_file("speed.json"), {host_key(): entry})
    assert Learnt.read() == Learnt()
    cache_file("speed.json").write_text(json.dumps(entry))
    assert Learnt.read() == Learnt()


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    learn(estimate(LARGE), run(LARGE))
    assert Learnt.read() == Learnt()


@pytest.mark.parametrize("path", OPERATIONS_PER_CYCLE)
def test_the_processor_says_what_to_expect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    paths = list(OPERATIONS_PER_CYCLE)[list(OPERATIONS_PER_CYCLE).index(path) :]
    (tmp_path / "cpuinfo").write_text("cpu MHz\t: 2000.0\n")
    monkeypatch.setattr("mrs.devices.processor.PROC", tmp_path)
    monkeypatch.setattr("mrs.devices.processor.cpu_threads", lambda: 4)
    monkeypatch.setattr("mrs.devices.processor.cpu_path", lambda: path)
    monkeypatch.setattr("mrs.devices.processor.cpu_paths", lambda: paths)
    plain, quantized = OPERATIONS_PER_CYCLE[path]
    assert operations_per_s("BF16") == 8e9 * plain
    assert operations_per_s("Q4_K") == 8e9 * quantized
    assert expected_bandwidth() == (52e9 if "avx512" in paths else 40e9)


def test_a_processor_that_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mrs.devices.processor.PROC", tmp_path / "nowhere")
    assert operations_per_s("BF16") > 0


@pytest.mark.parametrize("load", [0.5, 99.0])
def test_a_chat_teaches_unless_the_machine_is_busy(
    monkeypatch: pytest.MonkeyPatch, load: float
) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (load, load, load))
    monkeypatch.setattr("mrs.devices.bandwidth.measure_host_bandwidth", lambda: 31e9)
    # The demo fits into the caches of some processors, and other programs slow others down.
    monkeypatch.setattr("mrs.plan.speed.learnt.SLOWER", 1e6)
    monkeypatch.setattr("mrs.plan.speed.learnt.FASTER", 1e6)
    request = RunRequest(ModelSource("demo", "safetensors"), cpu=True)
    model = ModelLoader(request).load()
    question: list[Message] = [{"role": "user", "content": "What is a KV cache?"}]
    reply = model.stream_chat(question, Sampling(temperature=0, max_tokens=30))
    assert isinstance(list(reply)[-1], Finished)
    assert Learnt.read() == Learnt()  # written once, at the end
    model.close()
    is_quiet = load < 1
    assert is_host_known() == is_quiet
    assert (Learnt.read() != Learnt()) == is_quiet
    source = ModelLoader(request).plan.devices[-1].bandwidth_source
    assert source == ("measured" if is_quiet else "assumed")


def test_an_interrupt_at_the_end_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> float:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.getloadavg", lambda: (0.0, 0.0, 0.0))
    monkeypatch.setattr("mrs.devices.bandwidth.measure_host_bandwidth", interrupted)
    made = ModelLoader(RunRequest(ModelSource("demo", "safetensors"), cpu=True)).plan
    pace = Pace()
    pace.add_step(0.001)
    learn_speed(made, pace)
    assert Learnt.read() == Learnt()
