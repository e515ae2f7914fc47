"""Layers that stay on disk: the same tokens, from files that are made once, and checked."""

from __future__ import annotations

import ctypes
import errno
import gc
import json
import os
import random
import weakref
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch

from mrs.devices import expert_uses
from mrs.devices.disk import FILE_NAME, layers_folder, model_folder
from mrs.devices.expert_uses import read_uses, remember_uses
from mrs.devices.measurements import cache_file, write_entries
from mrs.errors import BadIndex, DoesNotFit, NotReadable, UsageError
from mrs.events import TextDelta
from mrs.formats import FORMATS
from mrs.kernels.cpu.library import is_available
from mrs.kernels.cpu.packed import PackedMatrix
from mrs.load import layer_files
from mrs.model.disk_experts import DiskExperts, ExpertsFile
from mrs.model.disk_layers import DiskLayer, DiskLayers
from mrs.model.disk_tables import DiskTable
from mrs.plan import learn_speed
from mrs.plan import plan as plan_module
from mrs.plan.placement.on_disk import OnDisk, layers_on_disk
from mrs.plan.report.document import SCHEMA, dumps, to_document
from mrs.plan.speed.learnt import Pace
from mrs.process import direct_file
from mrs.process.direct_file import BLOCK_BYTES, DirectFile, whole_blocks
from mrs.quantization.gguf import encode
from mrs.quantization.layer_layout import TableLayout
from mrs.request import ModelSource, RunRequest, Sampling
from mrs.run.model_loader import ModelLoader
from mrs.topology import Topology, experts_on_cpu
from support.byte_tokenizer import byte_tokenizer
from support.model_files import SMALL, write_model
from support.tiny_decoders import CONFIGS, MIXED_CONFIGS, PACKED_CONFIGS

pytestmark = pytest.mark.skipif(not is_available(), reason="the native kernels were not built")
LAYERS = 5
PROMPT = "On a dark desert highway, cool wind in my hair"
EXPERTS = 8
MIXTURE = {
    "moe_intermediate_size": 32,
    "num_experts": EXPERTS,
    "num_experts_per_tok": 2,
    "head_dim": 16,
}
#: A vocabulary whose table has more bytes than buffers for some of its rows.
WIDE = {"vocab_size": 3000}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("model"), "llama")


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("mixture"), "qwen3_moe", **MIXTURE)


def written(folder: Path, kind: str, dtype: str = "BF16", **more: Any) -> Path:
    sizes = {"hidden_size": 64, "vocab_size": 300, "num_hidden_layers": LAYERS}
    if layers := more.get("layer_types"):
        sizes["num_hidden_layers"] = len(layers)
    config = {**SMALL, **sizes, **more, "model_type": kind}
    write_model(folder, config, dtype, std=0.3)
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def loader(model: Path, disk_layers: Any, **more: Any) -> ModelLoader:
    source = ModelSource(str(model), "safetensors")
    return ModelLoader(
        RunRequest(
            source,
            disk_layers=disk_layers,
            prefix_cache_n=0,
            max_seq_len=256,
            **{"cpu": True, **more},
        )
    )


def scores(
    model: Path, disk_layers: Any, tokens: int = 12, **more: Any
) -> list[tuple[bytes, float]]:
    """The tokens of a reply with their probabilities."""
    loaded = loader(model, disk_layers, **more).load()
    try:
        return list(reply(loaded))
    finally:
        loaded.close()


def reply(loaded: Any) -> Iterator[tuple[bytes, float]]:
    sampling = Sampling(temperature=0, max_tokens=12, logprobs=0, ignore_eos=True)
    for event in loaded.stream_completion(PROMPT, sampling):
        if isinstance(event, TextDelta):
            yield from ((each.token, each.logprob) for each in event.logprobs)


def made() -> list[Path]:
    return sorted(layers_folder().rglob("*.mrs"))


@pytest.mark.parametrize("isq", [None, "q8_0", "q4_0"])
def test_the_bits_are_those_from_memory(model: Path, isq: str | None) -> None:
    expected = scores(model, None, isq=isq)
    assert len(expected) == 12
    for count in (1, 2, 3, LAYERS):
        assert scores(model, count, isq=isq) == expected


@pytest.mark.parametrize("isq", [None, "q4_0"])
def test_experts_have_the_bits_of_those_in_memory(mixture: Path, isq: str | None) -> None:
    expected = scores(mixture, None, isq=isq)
    assert len(expected) == 12
    for count in (1, 3, LAYERS):
        assert scores(mixture, count, isq=isq) == expected
    assert loader(mixture, LAYERS).plan.on_disk.expert_slots == 4


def test_the_sums_of_experts_have_one_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the order of their turns.

    Any order of two experts gives the same sum, and products with most formats would round it.
    """
    more = {**MIXTURE, "num_experts_per_tok": 4}
    folder = written(tmp_path / "model", "qwen3_moe", "F32", **more)
    expected = scores(folder, None, dtype="f32")
    asked = []

    def last_first(disk: DiskExperts, key: tuple[int, int]) -> int:
        asked.append(key)
        return -key[1]

    monkeypatch.setattr(DiskExperts, "_must_be_read", last_first)
    assert scores(folder, LAYERS, dtype="f32") == expected
    assert len(asked) >= 4 * LAYERS


def test_uses_are_kept_for_the_next_run(mixture: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mrs.devices.expert_uses.LEAST_USES", 1)
    assert loader(mixture, LAYERS).plan.on_disk.hit_rate is None
    expected = scores(mixture, LAYERS)
    gc.collect()
    planned = loader(mixture, LAYERS).plan
    uses = read_uses(model_folder(str(mixture)), dict.fromkeys(range(LAYERS), EXPERTS))
    counts = sorted((count for layer in uses.values() for count in layer), reverse=True)
    assert planned.on_disk.hit_rate == sum(counts[:4]) / sum(counts)
    assert "in memory: by use of earlier runs, " in planned.disk_note
    document = to_document(planned)
    jsonschema.validate(document, json.loads(SCHEMA.read_text()))
    assert document["planned"]["disk_expert_hit_rate"] == planned.on_disk.hit_rate
    begun = []
    begin_with = DiskExperts.begin_with

    def noted(disk: DiskExperts, uses: Any) -> None:
        begin_with(disk, uses)
        begun.extend(disk._slot_of)

    monkeypatch.setattr(DiskExperts, "begin_with", noted)
    assert scores(mixture, LAYERS) == expected
    assert sorted((uses[layer][n] for layer, n in begun), reverse=True) == counts[:4]


def test_uses_that_cannot_be_kept_are_not_missed(
    mixture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = scores(mixture, LAYERS)
    gc.collect()
    (model_folder(str(mixture)) / expert_uses.FILE_NAME).unlink()

    def full(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr("mrs.devices.measurements.replace_file", full)
    assert scores(mixture, LAYERS) == expected
    gc.collect()
    assert not (model_folder(str(mixture)) / expert_uses.FILE_NAME).exists()


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[",
        "[]",
        '{"0": [9, 9]}',
        '{"0": [9, 9, -1]}',
        '{"0": [9, 9, true]}',
        '{"0": [9, 9, 1e300]}',
    ],
)
def test_damaged_uses_are_none(tmp_path: Path, content: str) -> None:
    (tmp_path / expert_uses.FILE_NAME).write_text(content)
    assert read_uses(tmp_path, {0: 3}) == {}
    remember_uses(tmp_path, {0: [20, 1, 0]})
    assert read_uses(tmp_path, {0: 3}) == {0: [20, 1, 0]}
    assert read_uses(tmp_path, {0: 3, 1: 3}) == read_uses(tmp_path, {0: 4}) == {}
    remember_uses(tmp_path, {0: [1, 1, 0]})
    assert read_uses(tmp_path, {0: 3}) == {}


@pytest.mark.parametrize("isq", [None, "q4_0"])
def test_experts_that_torch_calls_have_the_bits_of_those_in_memory(
    mixture: Path, monkeypatch: pytest.MonkeyPatch, isq: str | None
) -> None:
    """As it does where their layer is on an accelerator."""
    monkeypatch.setattr("mrs.graph.layer_graph._is_mixture", lambda module: False)
    expected = scores(mixture, None, isq=isq)
    assert len(expected) == 12
    assert scores(mixture, LAYERS, isq=isq) == expected


def test_experts_of_layers_on_an_accelerator_are_on_disk(
    mixture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MRS_LOGICAL_DEVICES", "cpu")
    more = {"cpu": False, "topology": Topology((experts_on_cpu(None),))}
    expected = scores(mixture, None, **more)
    plan = loader(mixture, 3, **more).plan
    assert {plan.devices[index].label for index in plan.layer_devices} == {"cuda:0"}
    assert plan.expert_devices.keys() >= plan.on_disk.layouts.keys()
    assert plan.verdict.startswith("fits with experts of 5 of 5 layers on the CPU and experts of 3")
    assert scores(mixture, 3, **more) == expected


@pytest.mark.full
@pytest.mark.parametrize("kind", [*PACKED_CONFIGS, "hybrid", "latent", "delta"])
def test_other_kinds_of_layers(tmp_path: Path, kind: str) -> None:
    """Some are computed by torch in part."""
    config = {**PACKED_CONFIGS, **CONFIGS}[kind]
    folder = written(tmp_path / "model", **{"kind": config["model_type"], **config})
    expected = scores(folder, None)
    layers = loader(folder, None).plan.model.layers
    assert scores(folder, layers) == scores(folder, layers // 2) == expected


@pytest.mark.parametrize("kind", ["llama", "qwen3_moe"])
def test_replies_at_the_same_time(model: Path, mixture: Path, kind: str) -> None:
    folder = model if kind == "llama" else mixture
    expected = scores(folder, None)
    loaded = loader(folder, LAYERS).load()
    try:
        with ThreadPoolExecutor(3) as threads:
            found = list(threads.map(lambda _: list(reply(loaded)), range(3)))
    finally:
        loaded.close()
    assert found == [expected] * 3


@pytest.fixture
def small_machine(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Lets plans lack so many bytes of the memory of the CPU."""

    def lacking(missing_bytes: int) -> None:
        def planned(*given: Any) -> OnDisk:
            *others, host = given
            available = host.needed_bytes - missing_bytes
            return layers_on_disk(*others, replace(host, available_bytes=available))

        monkeypatch.setattr(plan_module, "layers_on_disk", planned)

    return lacking


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a large table of embeddings."""
    return written(tmp_path_factory.mktemp("wide"), "llama", **WIDE, tie_word_embeddings=False)


@pytest.mark.parametrize("isq", [None, "q8_0"])
def test_tables_are_read_by_rows(
    wide: Path, small_machine: Callable[[int], None], isq: str | None
) -> None:
    expected = scores(wide, "auto", isq=isq)
    assert not made()
    small_machine(1)
    plan = loader(wide, "auto", isq=isq).plan
    assert list(plan.on_disk.tables) == ["embedding.weight"]
    assert not plan.on_disk.layouts
    assert plan.verdict == "fits with 1 table on disk"
    assert "rows of 1 table are read from disk for each token" in plan.disk_note
    assert scores(wide, "auto", isq=isq) == expected
    (file,) = made()
    time = file.stat().st_mtime_ns
    assert scores(wide, "auto", isq=isq) == expected
    assert file.stat().st_mtime_ns == time


def test_inputs_of_layers_are_read_by_rows(
    tmp_path: Path, small_machine: Callable[[int], None]
) -> None:
    more = {**MIXED_CONFIGS["streams"], **WIDE, "vocab_size_per_layer_input": WIDE["vocab_size"]}
    folder = written(tmp_path / "model", more.pop("model_type"), **more)
    expected = scores(folder, None)
    small_machine(1)
    tables = loader(folder, "auto").plan.on_disk.tables
    assert list(tables) == ["layer_inputs.table.weight"]
    assert scores(folder, "auto") == expected


def test_layers_stay_on_disk_if_tables_are_not_enough(
    wide: Path, small_machine: Callable[[int], None]
) -> None:
    expected = scores(wide, None)
    small_machine(1)
    saved_bytes = loader(wide, "auto").plan.on_disk.saved_bytes
    small_machine(saved_bytes + 1)
    plan = loader(wide, "auto").plan
    assert f"rows of 1 table and 3 of {LAYERS} layers are read" in plan.disk_note
    assert scores(wide, "auto") == expected
    document = to_document(plan)
    jsonschema.validate(document, json.loads(SCHEMA.read_text()))
    assert document["planned"]["tables_on_disk"] == ["embedding.weight"]


def test_the_output_head_is_no_table(tmp_path: Path, small_machine: Callable[[int], None]) -> None:
    tied = written(tmp_path / "tied", "llama", **WIDE, tie_word_embeddings=True)
    small_machine(1)
    plan = loader(tied, "auto").plan
    assert not plan.on_disk.tables
    assert plan.on_disk.layouts


def test_a_damaged_row_ends_the_reply_in_a_line(
    wide: Path, small_machine: Callable[[int], None]
) -> None:
    small_machine(1)
    expected = scores(wide, "auto")
    (file,) = made()
    content = bytearray(file.read_bytes())
    content[: 3000 * 64 * 2] = bytes(3000 * 64 * 2)
    file.write_bytes(content)
    with pytest.raises(NotReadable, match=r"a row of a table cannot be read.*damaged"):
        scores(wide, "auto")
    assert scores(wide, "auto") == expected


@pytest.mark.parametrize("format_name", ["F32", "BF16", "Q8_0", "Q4_K"])
def test_rows_are_those_of_the_matrix(tmp_path: Path, format_name: str) -> None:
    """The last group is not whole, and groups begin anywhere in blocks."""
    rows, columns = 16 * 40 + 5, 256
    blocks = encode(torch.randn(rows, columns), FORMATS[format_name])
    matrix = PackedMatrix(format_name, rows, columns)
    matrix.fill(blocks)
    layout = TableLayout(FORMATS[format_name], rows, columns)
    content = matrix.data.numpy().tobytes()
    assert len(content) == layout.weight_bytes
    path = tmp_path / "table"
    path.write_bytes(content + bytes(whole_blocks(len(content)) - len(content)))
    size = layout.group_bytes
    sums = [[checksum(content[at : at + size])] for at in range(0, len(content), size)]
    whole = torch.zeros(layout.memory_bytes + BLOCK_BYTES, dtype=torch.uint8)
    start = -whole.data_ptr() % BLOCK_BYTES
    table = DiskTable(DirectFile(path), layout, sums, whole[start:][: layout.memory_bytes])
    for count in (1, 3, 200):
        ids = torch.randint(rows, (count,))
        assert torch.equal(table.rows(ids, torch.float32), matrix.rows(ids, torch.float32))
    assert torch.equal(
        table.rows(torch.tensor([rows - 1]), torch.bfloat16),
        matrix.rows(torch.tensor([rows - 1]), torch.bfloat16),
    )
    for bad in (-1, rows):
        with pytest.raises(BadIndex):
            table.rows(torch.tensor([0, bad]), torch.float32)


def test_files_are_made_once(model: Path) -> None:
    first = scores(model, LAYERS)
    files = made()
    times = [file.stat().st_mtime_ns for file in files]
    assert len(files) == LAYERS
    assert scores(model, 3) == first
    assert [file.stat().st_mtime_ns for file in files] == times
    assert scores(model, 3, isq="q8_0") != first
    assert len(made()) == LAYERS + 3


def test_a_file_that_is_not_whole_is_made_anew(model: Path) -> None:
    first = scores(model, LAYERS)
    for cut in (0, 1, BLOCK_BYTES, made()[0].stat().st_size - 1):
        os.truncate(made()[0], cut)
        assert scores(model, LAYERS) == first


@pytest.mark.parametrize("checksums", [b"[[]]", b"[1]", b"[[1], [1]]", b"[[0]]", b"{}"])
def test_a_file_of_another_version_is_made_anew(model: Path, checksums: bytes) -> None:
    first = scores(model, LAYERS)
    content = made()[0].read_bytes()
    at = content.index(b'"checksums": ') + len(b'"checksums": ')
    made()[0].write_bytes(content[:at] + checksums + b"}")
    if checksums == b"[[0]]":  # of this form, but not of these bytes
        with pytest.raises(NotReadable, match="damaged"):
            scores(model, LAYERS)
    assert scores(model, LAYERS) == first


def test_what_a_killed_run_has_left_is_removed(model: Path) -> None:
    first = scores(model, 2)
    left = made()[0].with_name(".layer-0000.mrs.0123.tmp")
    left.write_bytes(bytes(100))
    made()[0].unlink()
    assert scores(model, 2) == first
    assert not left.exists()


def test_damage_is_found_before_anything_is_computed(model: Path) -> None:
    first = scores(model, LAYERS)
    damaged = made()[2]
    content = bytearray(damaged.read_bytes())
    content[1000] ^= 1
    damaged.write_bytes(content)
    with pytest.raises(NotReadable, match=r"layer 2 cannot be read.*damaged; start again"):
        scores(model, LAYERS)
    assert scores(model, LAYERS) == first


def test_a_file_that_becomes_shorter_ends_the_reply_in_one_line(model: Path) -> None:
    loaded = loader(model, LAYERS).load()
    try:
        expected = list(reply(loaded))
        whole = made()[3].read_bytes()
        os.truncate(made()[3], BLOCK_BYTES)
        with pytest.raises(NotReadable, match="layer 3 cannot be read from disk") as caught:
            list(reply(loaded))
        assert "\n" not in str(caught.value)
        made()[3].write_bytes(whole)
        assert list(reply(loaded)) == expected
    finally:
        loaded.close()


def test_a_full_disk(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(layer_files, "replace_file", full)
    with pytest.raises(DoesNotFit, match="the disk is full"):
        scores(model, 2)
    assert made() == []


def test_too_small_a_disk_is_known_before(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = layer_files.shutil.disk_usage(model)
    small = usage._replace(free=100)
    monkeypatch.setattr(layer_files.shutil, "disk_usage", lambda path: small)
    with pytest.raises(DoesNotFit, match=r"2 layers need .* of disk, and 100 B are free"):
        scores(model, 2)


def test_a_file_system_without_direct_reads(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = scores(model, LAYERS)
    real = os.open

    def opened(path: Any, flags: int, *more: Any) -> int:
        if str(path).endswith(".mrs") and flags & direct_file._PAST_CACHE:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return real(path, flags, *more)

    monkeypatch.setattr(direct_file.os, "open", opened)
    assert scores(model, LAYERS) == expected


@pytest.mark.parametrize("order", [range(5), (0, 1, 4, 0, 1, 2, 3), (3, 3, 1, 0, 2)])
def test_each_layer_has_its_bytes_in_any_order(tmp_path: Path, order: Sequence[int]) -> None:
    sizes = [BLOCK_BYTES * count for count in (1, 3, 2, 5, 1)]
    contents = [random.Random(n).randbytes(size) for n, size in enumerate(sizes)]
    layers = {}
    for n, content in enumerate(contents):
        (tmp_path / str(n)).write_bytes(content)
        checksums = [checksum(content)]
        layers[n] = DiskLayer(DirectFile(tmp_path / str(n)), len(content), checksums, [])
    most = max(sizes)
    whole = torch.empty(2 * most + BLOCK_BYTES, dtype=torch.uint8)
    start = -whole.data_ptr() % BLOCK_BYTES
    memory = [whole[start : start + most], whole[start + most : start + 2 * most]]
    disk = DiskLayers(layers, memory)
    for _ in range(3):
        for n in order:
            with disk.held(n):
                assert memory[n % 2].numpy().tobytes()[: sizes[n]] == contents[n]


def checksum(content: bytes) -> int:
    return zlib.crc32(content)


def test_more_layers_than_there_are(model: Path) -> None:
    with pytest.raises(UsageError, match=f"{LAYERS + 1} layers cannot stay.*{LAYERS} are on"):
        loader(model, LAYERS + 1).plan  # noqa: B018


def test_the_plan_has_the_memory_of_two_layers(model: Path) -> None:
    write_entries(cache_file(FILE_NAME), {str(layers_folder()): 1e6})
    whole, some = loader(model, None).plan, loader(model, 3).plan
    weights = [each.weight_bytes for each in some.on_disk.layouts.values()]
    saved = whole.breakdowns[-1].weight_bytes - some.breakdowns[-1].weight_bytes
    assert saved == sum(weights) - some.on_disk.shared_bytes
    assert some.verdict == f"fits with 3 of {LAYERS} layers on disk"
    assert some.speed.decode.expected == pytest.approx(1e6 / some.on_disk.read_bytes)
    assert not whole.disk_note
    assert "3 of 5 layers are read from disk for each token" in some.disk_note
    assert "at 0.001 GB/s:" in some.disk_note


@pytest.mark.parametrize("kind", ["llama", "qwen3_moe"])
def test_memory_is_free_once_a_model_is_closed(model: Path, mixture: Path, kind: str) -> None:
    gc.disable()
    try:
        files = loader(model if kind == "llama" else mixture, LAYERS)
        decoder, weights = files.load_decoder(lambda progress: None)
        layer = decoder.stack.layers[0].native
        assert layer is not None, "it is computed in one call"
        disk = decoder.stack._on_disk if kind == "llama" else layer.program.experts.owner
        seen = weakref.ref(disk)
        del decoder, weights, layer, disk
        assert seen() is None
    finally:
        gc.enable()


def test_a_disk_teaches_no_speed_of_memory(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learnt: list[object] = []
    monkeypatch.setattr(learn_speed, "is_busy", lambda: False)
    monkeypatch.setattr(learn_speed, "has_room_to_measure", lambda: False)
    monkeypatch.setattr(learn_speed, "learn", lambda speed, pace: learnt.append(speed))
    for count in (2, None):
        assert not learnt
        learn_speed.learn_speed(loader(model, count).plan, Pace(step_s=1.0))
    assert learnt


def test_a_measured_run_finds_the_planned_weights(model: Path, mixture: Path) -> None:
    from mrs.run.measure import measure

    for which in (model, mixture):
        rows = {row.term: row for row in measure(loader(which, 3)).rows}
        assert rows["weights"].measured_bytes == rows["weights"].predicted_bytes


@pytest.mark.parametrize("kind", ["llama", "qwen3_moe"])
def test_a_saved_plan_has_the_same_layers(
    model: Path, mixture: Path, tmp_path: Path, kind: str
) -> None:
    folder = model if kind == "llama" else mixture
    plan = loader(folder, 2).plan
    document = to_document(plan)
    jsonschema.validate(document, json.loads(SCHEMA.read_text()))
    (tmp_path / "plan.json").write_text(dumps(document))
    again = loader(folder, None, plan_file=str(tmp_path / "plan.json")).plan
    assert again.on_disk == plan.on_disk
    assert again.on_disk.layouts


class Mixture:
    """Experts of one matrix each on disk, and what their reads cost."""

    def __init__(self, folder: Path, layers: int, experts: int, slots: int) -> None:
        self.values: dict[tuple[int, int], torch.Tensor] = {}
        self.matrices: dict[tuple[int, int], PackedMatrix] = {}
        self.read = 0
        rows, columns = 16, 64
        self.part_bytes = 4 * rows * columns
        made = {}
        for layer in range(layers):
            content, checksums, matrices = b"", [], []
            for expert in range(experts):
                matrix = PackedMatrix("F32", rows, columns)
                values = torch.randn(rows, columns)
                matrix.fill(values.view(torch.uint8))
                data = matrix.data.numpy().tobytes()
                content += data
                checksums.append([checksum(data)])
                self.values[layer, expert], self.matrices[layer, expert] = values, matrix
                matrices.append([(matrix, 0)])
            path = folder / str(layer)
            path.write_bytes(content)
            made[layer] = ExpertsFile(DirectFile(path), self.part_bytes, checksums, matrices)
        whole = torch.zeros((slots + 1) * self.part_bytes, dtype=torch.uint8)
        start = -whole.data_ptr() % BLOCK_BYTES
        self.disk = DiskExperts(
            made,
            list(whole[start : start + slots * self.part_bytes].split(self.part_bytes)),
            torch.zeros(0),
        )
        begin = self.disk._reader.begin

        def counted(*arguments: Any) -> Any:
            self.read += 1
            return begin(*arguments)

        self.disk._reader.begin = counted  # type: ignore[method-assign]
        kind = ctypes.CFUNCTYPE(
            ctypes.c_bool,
            *[ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_bool],
        )
        self._fetch = kind(self.disk.address)

    def use(self, layer: int, chosen: Sequence[int], *, in_any_order: bool = False) -> list[int]:
        """As the native library does: each expert in turn, whose bytes must be there.

        The order of their turns.
        """
        turns = np.array(sorted(chosen), np.int32)
        for turn in range(len(chosen)):
            done = self._fetch(layer, turns.ctypes.data, len(chosen), turn, in_any_order)
            self.disk.raise_failure()
            assert done
            expert = int(turns[turn])
            found = self.matrices[layer, expert].decode()
            assert torch.equal(found, self.values[layer, expert])
        return turns.tolist()


@pytest.mark.parametrize("slots", [2, 3, 7, 24])
def test_every_expert_has_its_bytes(tmp_path: Path, slots: int) -> None:
    mixture, chance = Mixture(tmp_path, 3, 8, slots), random.Random(1)
    for _ in range(60):
        for layer in range(3):
            chosen = chance.sample(range(8), chance.randint(1, 8))
            turns = mixture.use(layer, chosen, in_any_order=chance.random() < 0.5)
            assert sorted(turns) == sorted(chosen)
    if slots == 24:
        assert mixture.read <= 24


def test_experts_in_memory_have_the_first_turns(tmp_path: Path) -> None:
    mixture = Mixture(tmp_path, 1, 8, 4)
    mixture.use(0, [2, 5])
    assert mixture.use(0, [1, 2, 4, 5], in_any_order=True) == [2, 5, 1, 4]
    assert mixture.use(0, [0, 2, 5]) == [0, 2, 5]


def test_a_run_begins_with_experts_that_were_used_most(tmp_path: Path) -> None:
    mixture = Mixture(tmp_path, 2, 8, 3)
    mixture.disk.begin_with({0: [0, 0, 5, 0, 0, 9, 0, 0], 1: [0, 1, 0, 0, 0, 0, 0, 2]})
    assert mixture.read == 3
    mixture.use(0, [2, 5])
    mixture.use(1, [7])
    assert mixture.read == 3


def test_experts_that_are_used_most_stay(tmp_path: Path) -> None:
    """With a quarter in memory, uses by Zipf's law read less than half of what is chosen."""
    mixture, chance = Mixture(tmp_path, 2, 32, 16), random.Random(2)
    weights = [1 / (rank + 1) ** 1.2 for rank in range(32)]
    used = 0
    for step in range(400):
        for layer in range(2):
            chosen = sorted(set(chance.choices(range(32), weights, k=2)))
            if step == 100 and not layer:
                used = mixture.read = 0
            used += len(chosen)
            mixture.use(layer, chosen)
    assert mixture.read < used / 2


def test_experts_of_an_earlier_subject_leave(tmp_path: Path) -> None:
    mixture = Mixture(tmp_path, 1, 32, 8)
    for first in (0, 16):
        for _ in range(400):
            for expert in range(first, first + 6):
                mixture.use(0, [expert])
        mixture.read = 0
        for expert in range(first, first + 6):
            mixture.use(0, [expert])
        assert mixture.read == 0


def test_a_damaged_expert_ends_the_call(tmp_path: Path) -> None:
    mixture = Mixture(tmp_path, 1, 8, 4)
    mixture.use(0, [1, 2])
    with (tmp_path / "0").open("r+b") as file:
        file.seek(5 * mixture.part_bytes + 100)
        file.write(b"damage")
    mixture.use(0, [0, 3])
    with pytest.raises(NotReadable, match=r"expert 5 of layer 0 cannot be read.*damaged"):
        mixture.use(0, [1, 5])
    mixture.use(0, [1, 2])
