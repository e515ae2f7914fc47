"""The checks of a family on every path: those of the parity tests, and all of them for one family.

Parity tests take the classes of safetensors and of GGUF files, with transformers as their truth; a
family in plain torch, `EveryPath`: the recipe in `mrs.families` has a test that is whole. It makes
files of the tensors that the family names, with random values.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from case import PlainCase
from gguf_files import write_gguf
from reference import REPLY_TOKENS, Reference
from running import (
    TOLERANCE,
    Conversation,
    Dtype,
    Loaded,
    check_conversation,
    check_planned_bytes,
    difference,
    load,
)

sys.path.append(str(Path(__file__).parents[1] / "distributed"))
from clusters import Workers, cluster_decoder, engine_of, request_for, single_decoder
from ordered_reference import ordered_reference
from test_exact import talk

from mrs.devices.cpu_path import PATH_VARIABLE
from mrs.errors import Unsupported
from mrs.kernels.cpu.library import native_library
from mrs.model.batch import SequenceInput, forward_batch
from mrs.request import ModelSource, Sampling
from support.engines import Asked, generate, make_engine
from support.suites import first

#: What bf16 may change, if it is more than usual: some do not scale their scores, and for others
#: the rounding of cached keys changes which tokens an indexer chooses.
BF16_TOLERANCES = {"gemma3n": 0.15, "gemma4": 0.15}
GREEDY = Sampling(temperature=0, frequency_penalty=0, presence_penalty=0, max_tokens=REPLY_TOKENS)


def source_of(file: Path) -> ModelSource:
    return ModelSource(str(file), "gguf" if file.suffix == ".gguf" else "safetensors")


class SafetensorsChecks:
    """Checks of the fixtures `truth` and `model`, however the tokens arrive."""

    @pytest.mark.each_family
    @pytest.mark.table("safetensors", "second turn")
    def test_prompt_reply_and_second_turn(self, model: Loaded, truth: Reference) -> None:
        check_conversation(model, truth)

    @pytest.mark.table("chunks of 7")
    def test_in_chunks(self, model: Loaded, truth: Reference) -> None:
        check_conversation(model, truth, chunk_tokens=7)

    @pytest.mark.table("two devices")
    def test_split_over_two_logical_devices(self, truth: Reference) -> None:
        devices = torch.device("cpu"), torch.device("cpu", 0)
        assert devices[0] != devices[1]
        split = load(ModelSource(str(truth.folder), "safetensors"), devices=devices)
        check_conversation(split, truth)

    @pytest.mark.table("two devices")
    @pytest.mark.needs("a CUDA device")
    def test_split_over_cpu_and_cuda(self, truth: Reference) -> None:
        devices = torch.device("cuda", 0), torch.device("cpu")
        split = load(ModelSource(str(truth.folder), "safetensors"), devices=devices)
        check_conversation(split, truth)

    @pytest.mark.values
    @pytest.mark.table("no cache")
    @pytest.mark.parametrize("kv_cache", [True, False])
    def test_engine(self, model: Loaded, truth: Reference, kv_cache: bool) -> None:
        engine = make_engine(
            model.decoder, planned_tokens=64, context_tokens=512, kv_cache=kv_cache, chunk_tokens=7
        )
        expected = truth.reply if kv_cache else truth.reply_without_cache
        assert generate(engine, truth.prompt, GREEDY) == expected

    @pytest.mark.values
    @pytest.mark.parametrize(
        "cached",
        [
            pytest.param(2, marks=pytest.mark.table("prefix cache")),
            pytest.param(0, marks=pytest.mark.table("batch of 5")),
        ],
    )
    def test_five_replies_share_steps(self, model: Loaded, truth: Reference, cached: int) -> None:
        """Twice: the second time from the prefix cache, if there is one."""
        engine = make_engine(
            model.decoder,
            planned_tokens=64,
            context_tokens=512,
            chunk_tokens=16,
            max_seqs=5,
            planned_seqs=5,
            prefix_cache_n=cached,
        )
        for _ in range(2):
            asked = [Asked.of(engine, truth.prompt, GREEDY) for _ in range(5)]
            assert [each.finish() for each in asked] == [truth.reply] * 5
        # Keys of some ropes are turned otherwise with every token, and are computed again.
        is_kept = model.decoder.rope_epoch(len(truth.prompt)) is not None
        assert bool(engine.stats.cached_tokens) == (bool(cached) and is_kept)

    @pytest.mark.table("ISQ")
    def test_quantized_in_place(self, truth: Reference) -> None:
        small = load(ModelSource(str(truth.folder), "safetensors"), isq="q8_0")
        logits = Conversation(small.decoder).feed(truth.steady_prompt)
        chunked = Conversation(small.decoder, chunk_tokens=7).feed(truth.steady_prompt)
        off = (logits - truth.steady_logits).abs().amax(1) / truth.steady_logits.abs().max()
        # At some positions other experts, or other tokens of an indexer, are chosen.
        assert 0 < off.median() < 0.15
        # Not zero: attention of odd head sizes rounds otherwise, and that can change an 8-bit code.
        assert difference(chunked, logits) < 2e-2

    @pytest.mark.table("bf16")
    def test_bf16(self, truth: Reference) -> None:
        half = load(ModelSource(str(truth.folder), "safetensors"), dtype="bf16")
        logits = Conversation(half.decoder).feed(truth.steady_prompt)
        found = (
            tolerance
            for family, tolerance in BF16_TOLERANCES.items()
            if truth.case.family.startswith(family)
        )
        # Vectors are more random there.
        usual = 4e-2 if isinstance(truth.case, PlainCase) else 2e-2
        tolerance = next(found, usual)
        compared = slice(truth.steady_tokens)
        assert difference(logits[compared], truth.rounded_logits[compared]) < tolerance

    @pytest.mark.values
    @pytest.mark.table("planned bytes")
    @pytest.mark.parametrize(
        ("dtype", "isq"),
        [("bf16", "q8_0"), ("f32", None), ("bf16", None)],
    )
    def test_planned_bytes_are_allocated(
        self, truth: Reference, dtype: Dtype, isq: str | None
    ) -> None:
        check_planned_bytes(
            load(ModelSource(str(truth.folder), "safetensors"), dtype=dtype, isq=isq)
        )


class GgufChecks:
    """Checks of the fixtures `gguf_truth`, `gguf_file` and `gguf_model`."""

    @pytest.mark.table("GGUF")
    @pytest.mark.parametrize("chunk_tokens", [pytest.param(512, marks=pytest.mark.each_family), 7])
    def test_gguf_conversation(
        self, gguf_model: Loaded, gguf_truth: Reference, chunk_tokens: int
    ) -> None:
        check_conversation(gguf_model, gguf_truth, chunk_tokens)

    @pytest.mark.few(9)
    @pytest.mark.values
    @pytest.mark.table("GGUF")
    @pytest.mark.parametrize(("dtype", "isq"), [("f32", None), ("bf16", "q4k")])
    def test_planned_bytes_of_a_gguf_file(
        self, gguf_file: Path, dtype: Dtype, isq: str | None
    ) -> None:
        check_planned_bytes(load(ModelSource(str(gguf_file), "gguf"), dtype=dtype, isq=isq))


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


class EveryPathOfSafetensors(SafetensorsChecks):
    """All paths of one family whose GGUF files nobody has defined.

    `refused` has the settings by whose names paths refuse it: "stages" of several processes, each
    with some layers, and "shards" of each layer.
    """

    case: ClassVar[PlainCase]
    refused: ClassVar[dict[str, str]] = {}
    #: Whether the core suite has all of its checks, not only those of each family.
    is_kind_of_layer = False

    def __init_subclass__(cls) -> None:
        if "case" in vars(cls) and not cls.is_kind_of_layer:
            cls.pytestmark = [pytest.mark.configuration("family")]  # type: ignore[attr-defined]

    @pytest.fixture(scope="class")
    @classmethod
    def truth(cls, references) -> Reference:
        return references(cls.case)

    @pytest.fixture(scope="class")
    @classmethod
    def model(cls, truth: Reference) -> Loaded:
        """As it runs: with weights that are packed for the native library."""
        return load(source_of(truth.folder), packs=True)

    @pytest.fixture(scope="class")
    @classmethod
    def files(cls, truth: Reference) -> list[Path]:
        return [truth.folder]

    @pytest.fixture
    def torch_path(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        monkeypatch.setenv(PATH_VARIABLE, "torch")
        native_library.cache_clear()
        yield
        native_library.cache_clear()

    @pytest.mark.usefixtures("torch_path")
    def test_without_the_native_library(self, truth: Reference, files: list[Path]) -> None:
        for file in files:
            check_conversation(load(source_of(file)), truth, chunk_tokens=7)
            check_planned_bytes(load(source_of(file), dtype="bf16", isq="q8_0"))

    def test_weights_that_are_not_packed(self, truth: Reference, files: list[Path]) -> None:
        for file in files:
            check_conversation(load(source_of(file), packs=False), truth)

    def test_sequences_of_a_batch_do_not_mix(self, model: Loaded, truth: Reference) -> None:
        first = Conversation(model.decoder)
        second = Conversation(model.decoder, space=first.space)
        first.feed(truth.prompt[:20])
        caches = [first.cache, second.cache]
        fed = [
            SequenceInput(cache, ids, logits_rows=range(len(ids)))
            for cache, ids in zip(caches, (truth.prompt[20:], truth.prompt[:9]), strict=True)
        ]
        with torch.inference_mode():
            logits = model.decoder.forward(forward_batch(fed), caches)
        assert difference(logits[:-9], truth.prompt_logits[20:]) < TOLERANCE
        assert difference(logits[-9:], truth.prompt_logits[:9]) < TOLERANCE

    def test_rejected_drafts_are_rolled_back(self, model: Loaded, truth: Reference) -> None:
        engine = engine_of(model.decoder, speculate=True)
        asked = Asked.of(engine, truth.prompt, GREEDY)
        asked.sequence.lookup = WrongAtTimes(truth.prompt + truth.reply)  # type: ignore[assignment]
        assert asked.finish() == truth.reply
        assert 0 < engine.stats.accepted_tokens < engine.stats.drafted_tokens

    @pytest.mark.full
    def test_two_processes_with_some_layers_each(
        self, truth: Reference, files: list[Path], workers: Workers
    ) -> None:
        for file in files:
            request = request_for(file, workers.port, 1, dtype="f32")
            if "stages" in self.refused:
                with pytest.raises(Unsupported, match=repr(self.refused["stages"])):
                    cluster_decoder(request).__enter__()
                continue
            expected = talk(engine_of(single_decoder(request_for(file, None, 0, dtype="f32"))))
            with cluster_decoder(request) as (decoder, cluster):
                assert 0 < len(cluster.own_layers) < len(decoder.spec.layers)
                logits = Conversation(decoder).feed(truth.prompt)
                assert difference(logits, truth.prompt_logits) < TOLERANCE
                assert talk(engine_of(decoder)) == expected

    @pytest.mark.full
    def test_two_processes_with_shards_of_each_layer(
        self, truth: Reference, files: list[Path], workers: Workers
    ) -> None:
        if "shards" in self.refused:
            return
        for file in files:
            request = request_for(file, workers.port, 1, dtype="f32")
            assert request.cluster is not None
            request = replace(request, cluster=replace(request.cluster, group_size=2))
            with cluster_decoder(request) as (decoder, _):
                logits = Conversation(decoder, chunk_tokens=7).feed(truth.prompt)
                assert difference(logits, truth.prompt_logits) < TOLERANCE

    @pytest.mark.parametrize("ranks", first(1, [2, 3]))
    def test_shards_add_up(self, truth: Reference, files: list[Path], ranks: int) -> None:
        for file in files:
            self.check_shards(truth, file, ranks)

    @pytest.mark.full
    def test_shards_of_a_single_key_head_add_up(self, references) -> None:
        changes = {**self.case.changes, "num_key_value_heads": 1}
        truth = references(replace(self.case, name="one-key-head", changes=changes))
        self.check_shards(truth, truth.folder, 4)

    def check_shards(self, truth: Reference, file: Path, ranks: int) -> None:
        """By one process that computes what all do, and adds up their parts."""
        request = request_for(file, None, 0, dtype="f32")
        if "shards" in self.refused:
            with pytest.raises(Unsupported, match=repr(self.refused["shards"])):
                ordered_reference(request, ranks)
            return
        logits = Conversation(ordered_reference(request, ranks)).feed(truth.prompt)
        assert difference(logits, truth.prompt_logits) < TOLERANCE


class EveryPath(EveryPathOfSafetensors, GgufChecks):
    """All paths of one family."""

    @pytest.fixture(scope="class")
    @classmethod
    def gguf_truth(cls, truth: Reference) -> Reference:
        return truth

    @pytest.fixture(scope="class")
    @classmethod
    def gguf_file(cls, truth: Reference, tmp_path_factory: pytest.TempPathFactory) -> Path:
        path = tmp_path_factory.mktemp(truth.case.id) / "model.gguf"
        write_gguf(truth, path)
        return path

    @pytest.fixture(scope="class")
    @classmethod
    def gguf_model(cls, gguf_file: Path) -> Loaded:
        return load(source_of(gguf_file), packs=True)

    @pytest.fixture(scope="class")
    @classmethod
    def files(cls, truth: Reference, gguf_file: Path) -> list[Path]:
        return [truth.folder, gguf_file]

    @pytest.mark.parametrize("isq", first(1, ["q8_0", "q4k"]))
    def test_a_gguf_file_is_quantized_in_place(
        self, gguf_file: Path, truth: Reference, isq: str
    ) -> None:
        logits = Conversation(load(source_of(gguf_file), isq=isq).decoder).feed(truth.prompt)
        same = Conversation(load(source_of(truth.folder), isq=isq).decoder).feed(truth.prompt)
        assert difference(logits, same) < 1e-2
