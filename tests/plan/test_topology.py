"""`--topology`: quantization and devices of layers, of experts, and what is wrong with a file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mrs.errors import MrsError, Unsupported, UsageError
from mrs.plan.report.document import dumps, to_document
from mrs.request import ModelSource, RunRequest, Sampling
from mrs.run.model_loader import ModelLoader
from mrs.topology import Topology, experts_on_cpu, read_topology, topology_of
from support.model_files import LLAMA_70B, write_headers, write_model

MIXTURE: dict[str, Any] = {
    "model_type": "mixtral",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 300,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "tie_word_embeddings": False,
}
#: 540 bytes that mean lists of 10^9 elements.
ALIASES = (
    "x0: &x0 [q4k, q4k, q4k, q4k, q4k, q4k, q4k, q4k, q4k, q4k]\n"
    + "".join(f"x{i}: &x{i} [{', '.join(f'*x{i - 1}' for _ in range(10))}]\n" for i in range(1, 9))
    + "0: {isq: *x8}\n"
)
TWO_GPUS = ("cuda:0=24GiB", "cuda:1=24GiB", "cpu=64GiB")


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    folder = write_model(tmp_path_factory.mktemp("mixture"), MIXTURE, "BF16", std=0.2)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def request(folder: Path, found: Topology | None, *devices: str, **changes: Any) -> RunRequest:
    source = ModelSource(str(folder), "safetensors")
    made = RunRequest(source, topology=found, devices=devices, max_seq_len=256, **changes)
    return replace(made, calibration=False)


def test_a_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "t.yml"
    file.write_text(
        '4: {isq: q8_0}\n0-3: {isq: Q4K, device: "cuda[1]"}\n/experts/:\n  device: CPU\n'
    )
    rules = read_topology(str(file)).rules
    assert [(rule.selector, rule.isq, rule.device, rule.layers) for rule in rules] == [
        ("0-3", "Q4K", "cuda:1", range(3)),
        ("4", "q8_0", None, range(4, 5)),
        ("/experts/", None, "cpu", None),
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: [", "the topology is not YAML"),
        ("- 1", "the topology has no selectors"),
        ("", "the topology has no selectors"),
        ("x: {isq: q4k}", "not a selector"),
        ("4-4: {isq: q4k}", "an empty range of layers"),
        ("/(/: {isq: q4k}", "not a regular expression"),
        ("0: q4k", "a selector takes isq and device"),
        ("0: {isq: q4k, dtype: f16}", "a selector takes isq and device"),
        ("0: {device: gpu0}", "gpu0 is not a device"),
        ("[" * 5000, "the topology is not YAML"),
        ("0: &a {isq: q4k}\n1: *a", "it has an alias"),
        (ALIASES, "it has an alias"),
        ("0: {isq: [q4k]}", "settings are texts or numbers"),
        ("0: {device: {a: b}}", "settings are texts or numbers"),
        (f"0: {{isq: 0x{'f' * 9000}}}", "settings are texts or numbers"),
        ("? [0, 1]\n: {isq: q4k}", "not YAML"),
        (" " * 200_000, "more than 131072 bytes"),
    ],
)
def test_a_bad_file_is_one_line(tmp_path: Path, text: str, expected: str) -> None:
    file = tmp_path / "t.yml"
    file.write_text(text)
    with pytest.raises(MrsError, match=expected) as raised:
        read_topology(str(file))
    assert "\n" not in str(raised.value)
    assert str(file) in str(raised.value)


@pytest.mark.parametrize(
    ("rules", "changes", "expected"),
    [
        ({"0-4": {"isq": "q4k"}}, {}, "layer 3 does not exist .*the model has 3 layers"),
        ({"0-2": {"isq": "q4x"}}, {}, r"q4x is not a known format \(t.yml, 0-2\)"),
        ({"0": {"device": "cuda[2]"}}, {}, r"no device cuda:2 .*cuda:0, cuda:1, cpu"),
        ({"0": {"device": "cpu"}}, {"layer_map": "2"}, "the topology and -n both"),
        ({"/nothing/": {"device": "cpu"}}, {}, "no tensor is selected"),
        ({"/experts.0/": {"device": "cpu"}}, {}, "a device is for whole layers, or for all"),
        ({"/head/": {"device": "cpu"}}, {}, "a device is for whole layers, or for all"),
    ],
)
def test_what_a_model_cannot_have_is_named(
    mixture: Path, rules: dict[str, Any], changes: dict[str, Any], expected: str
) -> None:
    found = topology_of(rules, "t.yml")
    with pytest.raises((UsageError, Unsupported), match=expected):
        _ = ModelLoader(request(mixture, found, *TWO_GPUS, **changes)).plan


def test_layers_have_their_own_quantization(mixture: Path) -> None:
    rules = {"/experts/": {"isq": "q8_0"}, "1-2": {"isq": "q4_0"}}
    plan = ModelLoader(request(mixture, topology_of(rules, "t.yml"), isq="q5_0")).plan
    formats = {name: storage.format.name for name, storage in plan.storage.items()}
    assert formats["layers.0.mixer.q.weight"] == "Q5_0"
    assert formats["layers.1.mixer.q.weight"] == "Q4_0"
    assert formats["layers.1.ffn.experts.2.up.weight"] == "Q8_0"


def test_layers_go_where_the_file_says(mixture: Path) -> None:
    found = topology_of({"1-2": {"device": "cuda[1]"}, "2": {"device": "cpu"}}, "t.yml")
    plan = ModelLoader(request(mixture, found, *TWO_GPUS)).plan
    assert plan.layer_devices == (0, 1, 2)
    parts = [breakdown.weight_bytes for breakdown in plan.breakdowns]
    assert sum(parts) == sum(storage.size_bytes for storage in plan.storage.values())
    assert min(parts) > 0


@pytest.mark.parametrize("layers", [None, 2])
def test_experts_are_apart_from_their_layers(mixture: Path, layers: int | None) -> None:
    together = ModelLoader(request(mixture, None, *TWO_GPUS)).plan
    apart = ModelLoader(request(mixture, Topology((experts_on_cpu(layers),)), *TWO_GPUS)).plan
    assert apart.layer_devices == together.layer_devices == (0, 0, 0)
    moved = [name for name, index in apart.parameter_devices.items() if index == 2]
    count = 3 if layers is None else layers
    assert len(moved) == count * 4 * 3
    assert all(".ffn.experts." in name for name in moved)
    cpu_bytes = sum(apart.storage[name].size_bytes for name in moved)
    assert apart.breakdowns[2].weight_bytes == cpu_bytes
    file_bytes = sum(together.storage[name].size_bytes for name in moved)
    gpu_bytes = together.breakdowns[0].weight_bytes - apart.breakdowns[0].weight_bytes
    assert gpu_bytes == file_bytes
    assert f"cpu (experts of {count} layers)" in apart.summary


def test_experts_on_the_cpu_are_slower_than_on_the_gpu_and_faster_than_whole_layers(
    tmp_path: Path,
) -> None:
    large = {"hidden_size": 4096, "intermediate_size": 14336, "num_local_experts": 8}
    large |= {"num_attention_heads": 32, "num_key_value_heads": 8}
    folder = write_headers(tmp_path / "large", {**MIXTURE, **large})
    devices = ("cuda:0=80GiB", "cpu=128GiB")
    gpu, apart, cpu = (
        ModelLoader(request(folder, found, *devices, layer_map=layers)).plan.speed.decode.expected
        for found, layers in ((None, "3"), (Topology((experts_on_cpu(None),)), "3"), (None, "0"))
    )
    assert gpu > apart > 1.05 * cpu


def test_experts_on_the_cpu_make_room_for_layers(tmp_path: Path, mixture: Path) -> None:
    """A strategy counts what is left of a layer, and of the memory."""
    loader = ModelLoader(request(mixture, None, *TWO_GPUS))
    whole = loader.plan.breakdowns[0].needed_bytes
    small = f"cuda:0={whole // 2**20 + 513}MiB"
    found = Topology((experts_on_cpu(None),))
    plan = ModelLoader(request(mixture, found, small, "cpu=64GiB")).plan
    assert plan.fits
    assert set(plan.layer_devices) == {0}


def test_a_dense_model_has_no_experts(tmp_path: Path) -> None:
    folder = write_headers(tmp_path / "dense", {**LLAMA_70B, "num_hidden_layers": 2})
    with pytest.raises(UsageError, match=r"no tensor is selected \(--cpu-moe\): the model has no"):
        _ = ModelLoader(request(folder, Topology((experts_on_cpu(None),)), *TWO_GPUS)).plan


def test_a_saved_plan_has_the_topology(mixture: Path, tmp_path: Path) -> None:
    rules = {"0-2": {"isq": "q8_0"}, "/experts/": {"device": "cpu"}}
    loader = ModelLoader(request(mixture, topology_of(rules, "t.yml"), *TWO_GPUS))
    saved = tmp_path / "plan.json"
    saved.write_text(dumps(to_document(loader.plan, [])))
    again = ModelLoader(request(mixture, None, *TWO_GPUS, plan_file=str(saved))).plan
    assert again.parameter_devices == loader.plan.parameter_devices
    assert again.storage == loader.plan.storage


def tokens(folder: Path, found: Topology | None) -> list[int]:
    model = ModelLoader(request(folder, found)).load()
    try:
        sampling = Sampling(temperature=0, max_tokens=12, frequency_penalty=0, presence_penalty=0)
        return list(
            model.engine.generate([5, 9, 77, 130, 2, 41], replace(sampling, ignore_eos=True))
        )
    finally:
        model.close()


def test_experts_on_the_cpu_give_the_same_tokens(
    mixture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = tokens(mixture, None)
    monkeypatch.setenv("MRS_LOGICAL_DEVICES", "cpu,cpu")
    rules = {
        "0-2": {"device": "cuda[0]"},
        "2": {"device": "cuda[1]"},
        "/experts/": {"device": "cpu"},
    }
    assert tokens(mixture, topology_of(rules, "t.yml")) == alone
