"""`mrs plan` as a person calls it."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from mrs.errors import ExitCode
from mrs.plan.report.document import SCHEMA
from mrs_cli.app import main
from mrs_cli.environment import Environment
from support.model_files import GPT_OSS, LLAMA_70B, write_few_bits, write_headers, write_model

SMALL: dict[str, Any] = {**LLAMA_70B, "hidden_size": 256, "intermediate_size": 512}
SMALL |= {"num_hidden_layers": 6, "num_attention_heads": 8, "vocab_size": 512}
SMALL |= {"num_key_value_heads": 2, "max_position_embeddings": 1024}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("MRS_LOGICAL_DEVICES", raising=False)


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_headers(tmp_path_factory.mktemp("models") / "big", LLAMA_70B, 4))


@pytest.fixture
def small(tmp_path: Path) -> str:
    return str(write_model(tmp_path / "small", SMALL, "BF16"))


TWO_GPUS = ("--device", "cuda:0=80GiB", "--device", "cuda:1=80GiB", "--device", "cpu=64GiB")


@pytest.mark.full
def test_plain_text_in_a_pipe(run_mrs, big: str) -> None:
    ran = run_mrs("plan", "--dry-run", *TWO_GPUS, "plain", "-m", big)
    assert ran.code == 0
    assert ran.err == ""
    assert "\x1b" not in ran.out
    lines = ran.out.splitlines()
    assert lines[0] == f"model: {big}"
    assert "70.6 B parameters" in lines[1]
    assert "KV cache of 320 KiB per token" in lines[1]
    assert "layers: 0\u201345 cuda:0, 46\u201379 cuda:1" in lines
    assert "result: fits" in lines
    past = next(line for line in lines if line.startswith("prefix cache: "))
    assert re.search(r"up to [\d.]+ MiB on cuda:0, [\d.]+ GiB on cuda:1$", past)
    assert "conversations: 1 of 4,096 tokens fits" in lines
    ran = run_mrs("--prefix-cache-n", "0", "plan", "--dry-run", *TWO_GPUS, "plain", "-m", big)
    assert "prefix cache:" not in ran.out


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "line",
    [
        "--isq q4k plan --dry-run --json plain -m {} --max-seq-len 512",
        "plan --isq q4k --dry-run --json plain -m {} --max-seq-len 512",
        "--isq q8_0 plan --dry-run --isq q4k plain -m {} --json --max-seq-len 512",
        "--json plan --dry-run --isq 4 --max-seq-len 512 plain -m {}",
        "plan --dry-run --json --isq q4k --max-seq-len 512 -m {}",
    ],
)
def test_flags_stand_before_or_after(run_mrs, small: str, line: str) -> None:
    ran = run_mrs(*line.format(small).split())
    assert ran.code == 0
    document = json.loads(ran.out)
    assert document["planned"]["isq"] == "Q4_K"
    assert document["planned"]["context_tokens"] == 512


def test_json_is_what_the_schema_says(run_mrs, big: str) -> None:
    ran = run_mrs("plan", "--dry-run", "--json", *TWO_GPUS, "-m", big)
    document = json.loads(ran.out)
    Draft202012Validator(json.loads(SCHEMA.read_text())).validate(document)
    assert document["fits"]


def test_a_saved_plan_is_shown_without_changes_that_it_would_not_take(
    run_mrs, small: str, tmp_path: Path
) -> None:
    saved = tmp_path / "plan.json"
    ran = run_mrs("plan", "--dry-run", "--json", "plain", "-m", small, "--max-seq-len", "512")
    assert json.loads(ran.out)["changes"]
    saved.write_text(ran.out)
    ran = run_mrs("plan", "--dry-run", "--plan", str(saved), "plain", "-m", small)
    assert ran.code == 0
    assert "planned for: 512 tokens" in ran.out
    assert "change:" not in ran.out


@pytest.mark.parametrize("as_json", [False, True])
def test_a_spill_is_said_once(run_mrs, big: str, as_json: bool) -> None:
    devices = ("--device", "cuda:0=80GiB", "--device", "cpu=128GiB")
    ran = run_mrs("plan", "--dry-run", *(["--json"] if as_json else []), *devices, "-m", big)
    assert ran.code == 0
    assert len(re.findall(r"\d+ of 80 layers on the CPU", ran.out)) == 1
    assert "go to the CPU" not in ran.out
    assert ran.err == ""


def test_without_the_cpu(run_mrs, big: str) -> None:
    devices = ("--device", "cuda:0=80GiB", "--device", "cpu=128GiB")
    ran = run_mrs("--no-cpu-spill", "plan", "--dry-run", *devices, "-m", big)
    assert ran.code == 4
    assert "change: without --no-cpu-spill:" in ran.out
    assert "change: --isq q8_0:" in ran.out


def test_what_does_not_fit(run_mrs, big: str) -> None:
    ran = run_mrs("plan", "--dry-run", "--device", "cpu=16GiB", "-m", big)
    assert ran.code == 4
    assert "result: does not fit" in ran.out
    assert "bottleneck: cpu, " in ran.out
    assert "speed" not in ran.out


def test_devices_that_need_not_be_there_are_only_planned(run_mrs) -> None:
    words = ("plan", "--device", "RTX 4090", "-m", "demo")
    ran = run_mrs(*words)
    assert (ran.code, ran.models) == (0, [])
    assert ran.out == run_mrs(*words, "--dry-run").out


def test_more_sequences_than_any_memory_holds(run_mrs) -> None:
    ran = run_mrs("plan", "--dry-run", "-m", "demo", "--max-batch-size", "999999999999")
    assert ran.code == 4
    assert re.search(r"bottleneck: cpu, \d+ TiB short \(KV cache takes ", ran.out)


def test_a_cpu_without_room_for_the_program(run_mrs) -> None:
    devices = ("--device", "cuda:0=24GiB", "--device", "cpu=64MiB")
    ran = run_mrs("plan", "--dry-run", *devices, "-m", "demo")
    assert ran.code == 4
    assert "cpu: hypothetical, 0 layers, " in ran.out
    assert re.search(r"bottleneck: cpu, [\d.]+ GiB short \(runtime takes ", ran.out)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("plan --machine a=cpu=4GiB --device cpu=4GiB -m {}", "--machine excludes --device"),
        ("plan --dry-run --device gpu=4GiB -m {}", "'gpu=4GiB' is not a device"),
        ("plan --dry-run -m x plain -m {}", "put -m and its other flags after plain"),
        ("plan --dry-run -f a.gguf -f b.gguf", "no model is given: add -m ID"),
        ("plan --dry-run --strategy random -m {}", "fastest"),
        ("plan --dry-run -n 9:4 -m {}", "is for an accelerator that does not exist"),
        ("plan --dry-run plain -m {} --max-seq-len 0", "--max-seq-len 0 is out of range"),
    ],
)
def test_wrong_usage(run_mrs, small: str, line: str, expected: str) -> None:
    ran = run_mrs(*line.format(small).split())
    assert ran.code == 2
    assert expected in ran.err
    assert ran.out == ""


@pytest.mark.full
def test_predicted_beside_measured(run_mrs, small: str) -> None:
    ran = run_mrs("plan", "plain", "-m", small, "--max-seq-len", "600")
    assert ran.code == 0
    assert re.search(r"^cpu +weights .* exact$", ran.out, re.MULTILINE)
    assert re.search(r"^cpu +KV cache .* exact$", ran.out, re.MULTILINE)
    assert re.search(r"^cpu +activations .*%$", ran.out, re.MULTILINE)
    again = run_mrs("plan", "--dry-run", "plain", "-m", small)
    assert "calibrated on this machine" in again.out
    without = run_mrs("plan", "--dry-run", "--no-calibration", "plain", "-m", small)
    assert "calibrated" not in without.out


@pytest.mark.full
def test_what_was_measured_as_json(run_mrs, small: str) -> None:
    ran = run_mrs("plan", "--json", "plain", "-m", small, "--max-seq-len", "600")
    assert ran.code == 0
    document = json.loads(ran.out)
    Draft202012Validator(json.loads(SCHEMA.read_text())).validate(document)
    rows = {row["term"]: row for row in document["measured"]["terms"]}
    for term, planned in (("weights", "weights"), ("KV cache", "kv_cache")):
        held = document["devices"][0]["bytes"][planned]
        assert rows[term]["measured_bytes"] == rows[term]["predicted_bytes"] == held
    assert document["measured"]["decode_tokens_per_s"] > 0


def test_solve_and_tune_are_old_names_of_fit(run_mrs, big: str) -> None:
    devices = ("--device", "cuda:0=RTX PRO 6000", "--device", "cpu=128GiB")
    fit = run_mrs("fit", "--on", "cuda:0=RTX PRO 6000 + cpu=128GiB", "-m", big)
    solved = run_mrs("plan", "--dry-run", *devices, "--solve", "isq", "-m", big)
    tuned = run_mrs("tune", *devices, "-m", big)
    assert fit.out == solved.out == tuned.out
    assert "\u2192  q8_0 " in fit.out
    assert "note: --solve is mrs fit now" in solved.err
    assert "note: tune is mrs fit now" in tuned.err


@pytest.mark.full
def test_weights_of_few_bits_and_kv_that_stops_growing(run_mrs, tmp_path: Path) -> None:
    folder = write_few_bits(tmp_path / "gpt-oss", GPT_OSS)
    command = ("plan", "--dry-run", "--device", "cpu=64GiB", "-m", str(folder))
    lines = run_mrs(*command).out.splitlines()
    assert lines[1].endswith(
        "KV cache of 4.62 KiB per token on average, 4.00 KiB per further token"
    )
    assert not lines[2].startswith("weights: ")  # as many bytes as in the files
    document = json.loads(run_mrs(*command, "--json").out)
    assert list(document)[:4] == ["version", "summary", "verdict", "weights"]
    assert document["weights"]["text"] == ""
    assert document["model"]["kv_bytes_per_further_token"] == 4096


def test_a_single_layer_is_one_number(run_mrs, small: str) -> None:
    devices = ("--device", "cuda:0=4GiB", "--device", "cpu=4GiB")
    ran = run_mrs("plan", "--dry-run", *devices, "-n", "1", "-m", small)
    assert "layers: 0 cuda:0, 1\u20135 cpu" in ran.out.splitlines()


def test_unified_memory_is_shown_once(run_mrs, small: str) -> None:
    command = ("plan", "--dry-run", "--device", "metal:0=M2 Max 32GB", "-m", small)
    ran = run_mrs(*command)
    assert "metal:0: Apple M2 Max 32GB, hypothetical, 6 layers" in ran.out
    assert "cpu" not in ran.out
    document = json.loads(run_mrs(*command, "--json").out)
    assert [device["label"] for device in document["devices"]] == ["metal:0"]
    ran = run_mrs(*command, "-n", "2")
    assert "warning: metal:0 and cpu share one memory: together they need" in ran.out


def test_flags_that_contradict_a_saved_plan(run_mrs, small: str, tmp_path: Path) -> None:
    saved = tmp_path / "plan.json"
    saved.write_text(run_mrs("plan", "--dry-run", "--json", "-m", small, "--isq", "q4k").out)
    again = ("plan", "--dry-run", "--plan", str(saved), "-m", small)
    assert run_mrs(*again, "--isq", "4").err == ""
    ran = run_mrs(*again, "--isq", "q8_0")
    assert ran.code == 0
    assert ran.err == f"mrs: warning: --isq q8_0 is ignored: the plan in {saved} has q4k\n"


@pytest.mark.parametrize("columns", [80, 140])
def test_the_picture_keeps_to_the_screen(
    monkeypatch: pytest.MonkeyPatch, big: str, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.delenv("NO_COLOR", raising=False)
    devices = ("--device", "cuda:0=80GiB", "--device", "cuda:1=40GiB", "--device", "cpu=64GiB")
    out = Terminal()
    environment = Environment(io.StringIO(), out, io.StringIO(), {"TERM": "xterm"})
    assert main(("plan", "--dry-run", *devices, "-m", big), environment) == 0
    lines = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue()).splitlines()
    assert all(len(line.rstrip()) <= columns for line in lines)
    bars = [line.strip() for line in lines if line.strip().startswith("\u2588\u2588")]
    assert len(bars) == 3
    assert {len(bar) for bar in bars} == {min(columns, 120) - 4}
    strip = next(line for line in lines if "layers 0\u2013" in line)
    assert strip.count("\u251c") == strip.count("\u2524") == 3
    assert "\x1b[" in out.getvalue()
    text = "\n".join(lines)
    for part in ("weights", "KV cache", "activations", "runtime", "reserve", "free"):
        assert part in text
    assert "on the CPU" in text
    assert "prefix cache: " in text


def test_a_long_line_goes_on_below_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    out = Terminal()
    environment = Environment(io.StringIO(), out, io.StringIO(), {"TERM": "xterm"})
    assert main(("plan", "--dry-run", "-m", "demo-vision"), environment) == 0
    text = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue())
    assert re.search(r"^    1 image of [^\n]*\n    [^\n]*activations", text, re.MULTILINE)


def test_facts_of_four_gpus(run_mrs, big: str) -> None:
    """What is left on each for past conversations, and that their speed is a guess."""
    gpus = [f"--device=cuda:{i}=40GiB" for i in range(4)]
    ran = run_mrs("plan", "--dry-run", *gpus, "--device", "cpu=8GiB", "-m", big)
    assert re.search(
        r"^prefix cache: up to \d+ MiB to [\d.]+ GiB on each of 4 devices$",
        ran.out,
        re.MULTILINE,
    )
    assert re.search(r"tokens/s \(assuming a memory bandwidth of \d{3,4} GB/s\)", ran.out)
    given = [f"{gpu},bandwidth=900GB/s" for gpu in gpus]
    ran = run_mrs("plan", "--dry-run", *given, "--device", "cpu=8GiB", "-m", big)
    assert "assuming" not in ran.out


def test_what_does_not_fit_remembers_nothing(run_mrs, big: str) -> None:
    ran = run_mrs("plan", "--dry-run", "--device", "cpu=16GiB", "-m", big)
    assert "prefix cache:" not in ran.out


def test_a_pool_of_blocks(run_mrs, small: str) -> None:
    flags = ("--pa-ctxt-len", "3000", "--pa-blk-size", "16", "--pa-cache-type", "f32")
    ran = run_mrs("plan", "--dry-run", *flags, "plain", "-m", small)
    assert ran.code == 0
    assert "F32 KV cache of 188 blocks of 16 tokens (3,008 tokens)" in ran.out
    assert "conversations: 2 of 1,024 tokens each fit at the same time" in ran.out
    assert "prefix cache: uses free blocks of the KV cache" in ran.out
    ran = run_mrs("--pa-gpu-mem", "2", "plan", "--dry-run", "--json", "plain", "-m", small)
    document = json.loads(ran.out)
    cache = document["planned"]["kv_cache"]
    token_bytes = 6 * 2 * 32 * 2 * 2
    assert cache["blocks"] == 2 * 1024**2 // (64 * token_bytes)
    assert document["devices"][-1]["bytes"]["kv_cache"] == cache["tokens"] * token_bytes
    ran = run_mrs("--pa-ctxt-len", "64", "--no-paged-attn", "plan", "--dry-run", "-m", small)
    assert "warning: --pa-ctxt-len has no effect with --no-paged-attn" in ran.out


@pytest.mark.full
def test_the_part_of_each_process(run_mrs, big: str) -> None:
    """Of processes that share every layer: 80 layers of 8 KV heads, of which one has 2."""
    flags = ("plan", "--dry-run", "--tensor-parallel-size", "3", "--device", "cpu=640GiB")
    ran = run_mrs(*flags, "plain", "-m", big)
    assert "rank 2: " in ran.out
    assert "3 processes need " in ran.out
    ran = run_mrs(*flags, "--json", "plain", "-m", big)
    document = json.loads(ran.out)
    Draft202012Validator(json.loads(SCHEMA.read_text())).validate(document)
    kv_bytes = [each["kv_bytes"] for each in document["ranks"]]
    assert sum(kv_bytes) == sum(layer["kv_bytes"] for layer in document["layers"])
    assert kv_bytes[2] * 3 == kv_bytes[0] * 2


def test_processes_that_do_not_fit_together(run_mrs, big: str) -> None:
    flags = ("--tensor-parallel-size", "2", "--device", "cpu=100GiB")
    assert run_mrs("plan", "--dry-run", *flags, "plain", "-m", big).code == ExitCode.DOES_NOT_FIT


@pytest.mark.full
def test_several_processes_are_measured(run_mrs, small: str) -> None:
    ran = run_mrs("plan", "--tensor-parallel-size", "2", "plain", "-m", small)
    assert ran.code == ExitCode.DONE
    assert "ms measured" in ran.out


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("devices", "said"),
    [
        ("4x RTX 4090", "GPUs: 3 of 4 stay empty"),
        ("2x RTX 4090", "GPUs: 1 of 2 stays empty"),
        ("RTX 4090", ""),
    ],
)
def test_gpus_that_stay_empty_are_counted(run_mrs, devices: str, said: str) -> None:
    out = run_mrs("plan", "--device", devices, "-m", "demo").out
    assert ("GPUs:" in out) == bool(said)
    assert said in out
    assert "--tensor-parallel-size" in out or not said
