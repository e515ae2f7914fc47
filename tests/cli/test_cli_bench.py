"""`mrs bench` times the demo model and says so as a table or as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from mrs.engine.sequence import SequenceRequest, TokenOutput
from mrs.run import bench
from mrs_cli.app import main

WORK = ["-p", "24", "-g", "6", "-r", "2"]
PRODUCTS = 5 * 393_216  # of a token of the demo: the elements of the matrices of its layers
KV_BYTES = 5 * 2 * 128 * 2  # of a token of the demo: layers, keys and values, size, F16

FIGURES = (
    "prompt, 24 tokens",
    "reply, 6 tokens",
    "weights and caches",
    "memory bandwidth",
    "bandwidth used",
)


@pytest.mark.full
def test_the_table_names_every_figure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "-q", *WORK, "gguf", "-m", "demo"]) == 0
    shown = capsys.readouterr().out
    for figure in FIGURES:
        assert figure in shown
    assert "2 rounds" in shown


def test_json_is_consistent(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "-q", "--json", *WORK, "--isq", "q8_0", "plain", "-m", "demo"]) == 0
    report = json.loads(capsys.readouterr().out)
    work = report["work"]
    assert (work["prompt_tokens"], work["new_tokens"], work["rounds"]) == (24, 6, 2)
    decode, traffic = report["decode_tokens_per_s"], report["decode_bytes_per_s"]
    assert decode["low"] <= decode["median"] <= decode["high"]
    assert traffic["median"] == pytest.approx(
        decode["median"] * (report["token_bytes"] + report["cache_bytes"])
    )
    assert report["cache_bytes"] == (24 + 3) * KV_BYTES
    assert report["load_s"] > 0
    assert report["token_products"] == PRODUCTS
    if peak := report["peak_products_per_s"]:
        prompts = report["prompt_tokens_per_s"]["median"] * PRODUCTS
        assert report["peak_share"]["median"] == pytest.approx(prompts / peak["median"], rel=0.5)
    assert report["peak_bytes"] > report["token_bytes"]


def test_more_than_the_context_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "-p", "4000", "plain", "-m", "demo"]) == 2
    assert "lower -p or -g" in capsys.readouterr().err


def test_more_than_the_pool_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--pa-ctxt-len", "64"]
    assert main([*flags, "bench", "-p", "60", "-g", "6", "plain", "-m", "demo"]) == 2
    assert "more than the 64 that a sequence can have: lower -p" in capsys.readouterr().err


@pytest.mark.full
def test_layers_can_be_mapped_before_bench(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MRS_LOGICAL_DEVICES", "cpu")
    assert main(["-n", "0:2", "bench", *WORK, "--json", "-q", "plain", "-m", "demo"]) == 0
    assert "cuda:0 (2 layers)" in json.loads(capsys.readouterr().out)["summary"]


@pytest.mark.full
def test_several_sequences_after_a_depth(capsys: pytest.CaptureFixture[str]) -> None:
    shape = ["-c", "3", "--depth", "64", "--warmup", "0", "-r", "1"]
    assert main(["bench", "-q", "--json", *WORK[:4], *shape, "-m", "demo"]) == 0
    report = json.loads(capsys.readouterr().out)
    work = report["work"]
    assert (work["concurrency"], work["depth"], work["warmup"]) == (3, 64, 0)
    assert report["prompt_tokens_per_s"]["median"] > 0
    assert main(["bench", "--depth", "4000", "-m", "demo"]) == 2
    assert "4000 + 512 + 64 tokens" in capsys.readouterr().err


def test_speeds_are_of_steps_not_of_their_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two replies; the second prompt takes longer, and all is over before anything is read."""
    steps = iter([[1.0, 2.0, 4.0], [2.0, 4.0, 6.0]])

    class Engine:
        def submit(self, request: SequenceRequest) -> Iterator[TokenOutput]:
            times_s = next(steps)
            return (TokenOutput(None, None, None, each) for each in times_s)  # type: ignore[arg-type]

    monkeypatch.setattr(bench.time, "perf_counter", lambda: 0.5)
    found = bench._measure_round(Engine(), [[1], [2]], 3)  # type: ignore[arg-type]
    assert found == (1.5, 4.0, 3)
