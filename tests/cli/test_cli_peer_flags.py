"""The command line of mistral.rs, row by row: same meaning, accepted and said, or refused by name.

A row has the words after `mrs`, and what they come to: fields of the request or of the sampling,
`said` for a flag without effect, or the way out of a refusal.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mrs.architecture.family_registry import family_by_name
from mrs.architecture.vision.describe_vision import vision_family
from mrs.request import AdapterRequest, ModelSource, PagedRequest, RunRequest, VisionRequest
from mrs.source.locate import DEMO_FOLDER
from mrs.topology import experts_on_cpu
from mrs_cli.app import command_tree
from mrs_cli.parsing import refusals
from mrs_cli.parsing.flags.no_effect_flags import NO_EFFECT

DEMO = RunRequest(ModelSource("demo", "safetensors"))
GGUF = str(DEMO_FOLDER / "model" / "demo.gguf")

SAME: list[tuple[str, dict[str, Any]]] = [
    # the classic program's global flags
    ("-n 0:2 plain -m demo", {"layer_map": "0:2"}),
    ("--num-device-layers 2 plain -m demo", {"layer_map": "2"}),
    ("--isq q4k plain -m demo", {"isq": "q4k"}),
    ("--isq afq4 plain -m demo", {"isq": "afq4"}),
    ("--cpu plain -m demo", {"cpu": True}),
    ("--max-seqs 3 plain -m demo", {"max_seqs": 3}),
    ("--no-kv-cache plain -m demo", {"kv_cache": False}),
    ("--prefix-cache-n 4 plain -m demo", {"prefix_cache_n": 4}),
    ("--enable-thinking plain -m demo", {"thinking": True}),
    ("--enable-thinking false plain -m demo", {"thinking": False}),
    ("--pa-gpu-mem 64 plain -m demo", {"paged": PagedRequest(memory_mib=64)}),
    ("--pa-gpu-mem-usage .5 plain -m demo", {"paged": PagedRequest(memory_fraction=0.5)}),
    ("--pa-ctxt-len 64 plain -m demo", {"paged": PagedRequest(context_tokens=64)}),
    ("--pa-blk-size 32 plain -m demo", {"paged": PagedRequest(block_tokens=32)}),
    ("--pa-cache-type auto plain -m demo", {}),
    ("--pa-cache-type f8e4m3 plain -m demo", {"paged": PagedRequest(cache_type="f8e4m3")}),
    ("--paged-attn plain -m demo", {"paged": PagedRequest(pool=True)}),
    ("--no-paged-attn plain -m demo", {"paged": PagedRequest(pool=False)}),
    # its selectors
    ("run -m demo", {}),
    ("multimodal-plain -m demo", {"vision": VisionRequest()}),
    ("vision-plain -m demo --max-num-images 2", {"vision": VisionRequest(None, 2)}),
    ("plain -m demo -a llama -d f16", {"arch": "llama", "dtype": "f16"}),
    ("plain -m demo --max-seq-len 64 --max-batch-size 2", {"max_seq_len": 64, "max_batch_size": 2}),
    ("lora -m demo -a x;y", {"adapters": (AdapterRequest("x"), AdapterRequest("y"))}),
    ("lora -m demo --adapter-model-id x", {"adapters": (AdapterRequest("x"),)}),
    ("lora -m demo -a x --arch llama", {"adapters": (AdapterRequest("x"),), "arch": "llama"}),
    ("--isq 4 plain -m demo --imatrix x", {"isq": "4", "imatrix": "x"}),
    ("--isq 4 plain -m demo --calibration-file x", {"isq": "4", "calibration_file": "x"}),
    ("--isq 4 plain -m demo -o moqe", {"isq": "4", "moqe": True}),
    ("--isq 4 plain -m demo --organization default", {"isq": "4"}),
    ("--isq q4k plain -m demo -w out", {"isq": "q4k", "write_uqff": "out"}),
    (
        "vision-plain -m demo --write-uqff x.uqff",
        {"vision": VisionRequest(), "write_uqff": "x.uqff"},
    ),
    # the newer program
    ("run -m demo --isq 4 --isq-organization moqe", {"isq": "4", "moqe": True}),
    ("-m demo", {}),
    (
        "-m demo --lora a=x --lora b=y/z",
        {"adapters": (AdapterRequest("x", "a", False), AdapterRequest("y/z", "b", False))},
    ),
    ("run auto -m demo", {}),
    ("run text -m demo", {}),
    ("run -m demo --quant 4", {"isq": "4"}),
    ("run -m demo --device-layers 2", {"layer_map": "2"}),
    ("run -m demo --max-seqs 32", {"max_seqs": 32}),
    ("run -m demo --reasoning-effort low", {"reasoning_effort": "low", "thinking": True}),
    ("run -m demo --reasoning-effort off", {"reasoning_effort": "off", "thinking": False}),
    ("run -m demo --format plain", {}),
    ("run -m demo --dtype bf16", {"dtype": "bf16"}),
    ("run -m demo --paged-attn on", {"paged": PagedRequest(pool=True)}),
    ("run -m demo --paged-attn off", {"paged": PagedRequest(pool=False)}),
    ("run -m demo --paged-attn=auto", {}),
    ("run -m demo --pa-context-len 64", {"paged": PagedRequest(context_tokens=64)}),
    ("run -m demo --pa-memory-mb 64", {"paged": PagedRequest(memory_mib=64)}),
    ("run -m demo --pa-memory-fraction .5", {"paged": PagedRequest(memory_fraction=0.5)}),
    ("run -m demo --pa-block-size 32", {"paged": PagedRequest(block_tokens=32)}),
    # llama.cpp
    ("run -m demo --n-cpu-moe 2", {"topology": (experts_on_cpu(2),)}),
    ("run -m demo --cpu-moe", {"topology": (experts_on_cpu(None),)}),
]

SOURCES = [
    ("run -m demo --hf-cache /c", {"cache_path": "/c"}),
    ("run -m demo -t /t.json", {"tokenizer_json": "/t.json"}),
    ("plain -m demo -f a-0.uqff;b.uqff", {"uqff": ("a-0.uqff", "b.uqff")}),
    ("plain -m demo --from-uqff q4k", {"uqff": ("q4k",)}),
    ("run -m demo --from-uqff 4", {"uqff": ("4",)}),
    ("run -m demo -f a.uqff", {"uqff": ("a.uqff",)}),
    ("run -m demo --format gguf", {"container": "gguf"}),
    (f"run -f {GGUF}", {"model_id": GGUF, "container": "gguf"}),
    ("run -m demo --format gguf -t /t.json", {"container": "gguf", "tokenizer_json": "/t.json"}),
    ("run -m demo -f demo.gguf", {"container": "gguf", "filenames": ("demo.gguf",)}),
    ("run -m demo -f a.gguf;b.gguf", {"container": "gguf", "filenames": ("a.gguf", "b.gguf")}),
    (
        "run -m demo --format gguf --tok-model-id demo",
        {"container": "gguf", "tokenizer_model_id": "demo"},
    ),
]

SAID = [
    "run -m demo --max-num-batched-tokens 4096",
    "run -m demo --max-decode-steps-before-prefill 8",
    "--prompt-batchsize 64 plain -m demo",
    "--throughput plain -m demo",
    "run -m demo --no-ui",
    "run -m demo --no-readme",
    "run -m demo --enable-lora",
    "run -m demo --lora-max-adapters 4",
    "run -m demo --lora-max-rank 4",
    "run -m demo --lora-max-bytes 4",
]

REFUSED = [
    ("run -m demo --quant auto", "mrs fit"),
    ("--enable-search plain -m demo", "let the client search"),
    ("--max-tool-rounds 3 plain -m demo", "the client runs them"),
    ("--truncate-sequence plain -m demo", "truncate_sequence=True"),
    ("plain -m demo --matformer-config-path x", "load a checkpoint"),
    ("lora-gguf -m demo -a x -o order.json", "leave it out"),
    ("run -m demo --legacy-lora x", "mrs lora -m ID -a ADAPTER"),
    ("x-lora -m demo -x y", "mrs lora -m ID -a ADAPTER"),
    ("x-lora-gguf -m demo", "mrs lora -m ID -a ADAPTER"),
    ("ggml -m demo", "convert"),
    ("toml -f x", "mrs -m ID"),
    ("embedding -m demo", "/v1/embeddings"),
    ("uqff inspect -m demo", "mrs plan --dry-run"),
    ("diffusion -m demo", "text or a vision model"),
    ("speech -m demo", "text or a vision model"),
    ("from-config x", "mrs -m ID"),
    ("login", "hf auth login"),
    ("update", "pip install"),
    ("uninstall", "pip uninstall"),
    ("run -m demo --sandbox-image x", "the client runs them"),
    ("tune -m demo --profile fast", "--strategy fastest"),
    ("tune -m demo --emit-config x", "--plan plan.json"),
]

TEXT_ARCHS = "mistral gemma mixtral llama phi2 phi3 qwen2 gemma2 starcoder2 phi3.5moe deepseekv2 "
TEXT_ARCHS += "deepseekv3 qwen3 glm4 qwen3moe smollm3 gpt_oss"
VISION_ARCHS = "phi3v idefics3 llava llava_next vllama qwen2vl qwen2_5vl gemma3 mistral3"


@pytest.mark.parametrize(("line", "expected"), SAME, ids=lambda value: str(value)[:60])
def test_a_row_of_the_same_meaning(run_mrs, line: str, expected: dict[str, Any]) -> None:
    ran = run_mrs(*line.split(), stdin="hello\n")
    assert (ran.code, ran.err.count("no effect")) == (0, 0)
    request = ran.request
    if request.topology is not None:
        request = replace(request, topology=request.topology.rules)
    assert request == replace(DEMO, **expected)


@pytest.mark.parametrize(("line", "expected"), SOURCES)
def test_a_row_that_names_a_source(run_mrs, line: str, expected: dict[str, Any]) -> None:
    source = run_mrs(*line.split(), stdin="hello\n").request.source
    assert source == replace(DEMO.source, **expected)


@pytest.mark.parametrize("line", SAID)
def test_a_row_that_is_accepted_and_said(run_mrs, line: str) -> None:
    ran = run_mrs(*line.split(), stdin="hello\n")
    assert (ran.code, ran.request) == (0, DEMO)
    flag = next(word for word in line.split() if word in NO_EFFECT)
    assert ran.err.count(f"mrs: {flag} has no effect: {NO_EFFECT[flag]}\n") == 1
    assert "no effect" not in run_mrs("-q", *line.split(), stdin="hello\n").err


@pytest.mark.parametrize(("line", "way_out"), REFUSED)
def test_a_row_that_is_refused_by_name(run_mrs, line: str, way_out: str) -> None:
    ran = run_mrs(*line.split(), stdin="hello\n")
    assert ran.code == 5
    assert ran.models == []
    assert ran.err.startswith("mrs: error: ")
    assert way_out in ran.err
    assert ran.err.count("\n") == 1


def test_moqe_without_isq_is_said(run_mrs) -> None:
    ran = run_mrs("plain", "-m", "demo", "-o", "moqe", stdin="hello\n")
    assert ran.code == 0
    assert ran.err.count("mrs: -o moqe has no effect: ") == 1


def test_isq_of_uqff_files_is_said(run_mrs) -> None:
    ran = run_mrs("--isq", "q4k", "plain", "-m", "demo", "-f", "a.uqff", stdin="hello\n")
    assert (ran.code, ran.request.isq) == (0, None)
    assert ran.err.count("mrs: --isq has no effect: ") == 1


@pytest.mark.parametrize(
    ("line", "way_out"),
    [
        ("run --from-uqff q4k", "add -m ID"),
        ("plain -m demo -f x/a.uqff", "give -m the folder of the file"),
        ("plain -m demo -f a.uqff -w b.uqff", "exclude each other"),
        ("quantize -m demo --isq q4k", "add -o FILE.gguf or -o FOLDER"),
        ("quantize -m demo -o x", "add --isq"),
        ("quantize -m demo --isq q4k,q8_0 -o x.uqff", "give -o a folder"),
        ("quantize --isq q4k,q9k -o x plain -m no-such-model", "--isq q9k is not a known format"),
        ("quantize --isq q4k, -o x plain -m no-such-model", "is not a known format"),
        ("--workers 1 --rejoin-limit nan plain -m demo", "--rejoin-limit nan is not a number"),
    ],
)
def test_contradictions_of_uqff(run_mrs, line: str, way_out: str) -> None:
    ran = run_mrs(*line.split(), stdin="hello\n")
    assert (ran.code, ran.models) == (2, [])
    assert way_out in ran.err
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize(
    ("line", "way_out"),
    [("lora -m demo", "add -a ID"), ("run -m demo --lora x", "give NAME=ID")],
)
def test_an_adapter_without_its_id(run_mrs, line: str, way_out: str) -> None:
    ran = run_mrs(*line.split(), stdin="hello\n")
    assert (ran.code, ran.models) == (2, [])
    assert way_out in ran.err


def test_what_is_refused_is_not_offered() -> None:
    tree = command_tree()
    options = [option for command in tree.commands.values() for option in command.params]
    offered = {name for option in options for name in option.opts}
    offered -= {"-o"}  # of mrs quantize; refused where it is --organization or --order
    assert not offered & set(refusals.FLAGS)
    assert not set(tree.commands) & set(refusals.COMMANDS)


@pytest.mark.parametrize("name", TEXT_ARCHS.split())
def test_the_names_of_text_architectures(name: str) -> None:
    assert family_by_name(name).name


@pytest.mark.parametrize("name", VISION_ARCHS.split())
def test_the_names_of_vision_architectures(name: str) -> None:
    assert vision_family(name, "test").name


def test_bench_has_the_classic_letters() -> None:
    bench = command_tree().commands["bench"]
    letters = {name: option.name for option in bench.params for name in option.opts}
    classic = ("-p", "-g", "-r", "-c", "-n")
    assert [letters[name] for name in classic] == [
        "prompt_tokens",
        "new_tokens",
        "rounds",
        "concurrency",
        "num_device_layers",
    ]
    newer = ("--prompt-len", "--gen-len", "--iterations", "--depth", "--warmup")
    assert all(name in letters for name in newer)


def test_input_is_the_prompt_and_the_letter_is_the_chat(run_mrs) -> None:
    ran = run_mrs("run", "-m", "demo", "--input", "hello")
    assert ran.models[0].asked[-1][0][-1]["content"] == "hello"
    ran = run_mrs("run", "-m", "demo", "-i", "hello", stdin="history\n")
    assert [len(messages) for messages, _ in ran.models[0].asked] == [1, 3]


@pytest.mark.parametrize("word", ["-V", "--version"])
def test_the_version(run_mrs, capsys, word: str) -> None:
    assert run_mrs(word).code == 0
    assert capsys.readouterr().out.startswith("mrs ")


def test_flags_of_other_kinds_are_refused(run_mrs, tmp_path: Path) -> None:
    for line in ("-m demo --mmproj x", "-m demo --max-num-images 2", f"-f {GGUF} -a llama"):
        ran = run_mrs(*line.split(), stdin="hello\n")
        assert ran.code == 2
        assert "is not for this model, whose kind is" in ran.err
