"""Every flag ends in the field of the request, or of the sampling, that it names."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from mrs.request import Grammar, ModelSource, PagedRequest, RunRequest, Sampling

PLAIN = RunRequest(ModelSource("x", "safetensors"))
GGUF = RunRequest(ModelSource("x", "gguf", filenames=("a.gguf",)))

GLOBAL_FLAGS = [
    (["-n", "0:16;1:16"], {"layer_map": "0:16;1:16"}),
    (["--num-device-layers", "16"], {"layer_map": "16"}),
    (["--isq", "Q4K"], {"isq": "Q4K"}),
    (["--cpu"], {"cpu": True}),
    (["--no-kv-cache"], {"kv_cache": False}),
    (["--paged-attn"], {"paged": PagedRequest(pool=True)}),
    (["--no-paged-attn"], {"paged": PagedRequest(pool=False)}),
    (["--pa-ctxt-len", "9000"], {"paged": PagedRequest(context_tokens=9000)}),
    (["--pa-gpu-mem-usage", ".8"], {"paged": PagedRequest(memory_fraction=0.8)}),
    (["--pa-gpu-mem", "512"], {"paged": PagedRequest(memory_mib=512)}),
    (["--pa-blk-size", "16"], {"paged": PagedRequest(block_tokens=16)}),
    (["--pa-cache-type", "F16"], {"paged": PagedRequest(cache_type="f16")}),
    (["--pa-cache-type", "auto", "--cpu"], {"cpu": True}),
    (["--max-seqs", "3"], {"max_seqs": 3}),
    (["--prefix-cache-n", "0"], {"prefix_cache_n": 0}),
    (["--prefix-cache-dir", "/d"], {"prefix_cache_dir": "/d"}),
    (["--prefix-cache-size", "2GiB"], {"prefix_cache_size": "2GiB"}),
    (["--prefix-cache-dir-size", "9MiB"], {"prefix_cache_dir_size": "9MiB"}),
    (["--speculate", "OFF"], {"speculate": "off"}),
    (["--draft-model", "y"], {"draft_model": "y"}),
    (["--mtp"], {"mtp": True}),
    (["--no-mtp"], {"mtp": False}),
    (["-c", "t.jinja"], {"chat_template": "t.jinja"}),
    (["--chat-template", "t.json"], {"chat_template": "t.json"}),
    (["-j", "t.jinja"], {"jinja_explicit": "t.jinja"}),
    (["--jinja-explicit", "t.jinja"], {"jinja_explicit": "t.jinja"}),
    (["--thinking"], {"thinking": True}),
    (["--thinking", "true"], {"thinking": True}),
    (["--thinking", "false"], {"thinking": False}),
    (["--thinking=false"], {"thinking": False}),
    (["--thinking", "True"], {"thinking": True}),
    (["--thinking", "--cpu"], {"thinking": True, "cpu": True}),
    (["--reasoning-budget", "9"], {"reasoning_budget": 9}),
    (["--reasoning-budget", "-1"], {"reasoning_budget": -1}),
    (["--reasoning-budget-message", "So."], {"reasoning_budget_message": "So."}),
    (["--reasoning-effort", "LOW"], {"reasoning_effort": "low", "thinking": True}),
]
SELECTOR_FLAGS = [
    (["-d", "bf16"], {"dtype": "bf16"}),
    (["--dtype", "F16"], {"dtype": "f16"}),
    (["--max-seq-len", "8192"], {"max_seq_len": 8192}),
    (["--max-batch-size", "2"], {"max_batch_size": 2}),
]
PLAIN_SOURCES = [
    (["-t", "t.json"], {"tokenizer_json": "t.json"}),
    (["--tokenizer-json", "t.json"], {"tokenizer_json": "t.json"}),
    (["--hf-cache-path", "/c"], {"cache_path": "/c"}),
]
SAMPLING = [
    (["--adapter", "a"], {"adapter": "a"}),
    (["--max-tokens", "5"], {"max_tokens": 5}),
    (["--temperature", "0"], {"temperature": 0.0}),
    (["--top-k", "0"], {"top_k": 0}),
    (["--top-p", "1"], {"top_p": 1.0}),
    (["--min-p", "0.2"], {"min_p": 0.2}),
    (["--repetition-penalty", "1.1"], {"repetition_penalty": 1.1}),
    (["--frequency-penalty", "-1"], {"frequency_penalty": -1.0}),
    (["--presence-penalty", "2"], {"presence_penalty": 2.0}),
    (["--stop", "a", "--stop", "b c"], {"stop": ("a", "b c")}),
    (["--dry-multiplier", "0.8"], {"dry_multiplier": 0.8}),
    (["--dry-base", "2"], {"dry_base": 2.0}),
    (["--dry-allowed-length", "3"], {"dry_allowed_length": 3}),
    (["--dry-sequence-breaker", "."], {"dry_sequence_breakers": (".",)}),
    (["--logit-bias", "3=-5", "--logit-bias", "4=1.5"], {"logit_bias": ((3, -5.0), (4, 1.5))}),
    (["--grammar", "regex:a:b"], {"grammar": Grammar("regex", "a:b")}),
    (["--grammar", "json_object"], {"grammar": Grammar("json_object")}),
    (["--typical-p", "0.9"], {"typical_p": 0.9}),
    (["--top-n-sigma", "1.5"], {"top_n_sigma": 1.5}),
    (["--xtc-probability", "0.5"], {"xtc_probability": 0.5}),
    (["--xtc-threshold", "0.2"], {"xtc_threshold": 0.2}),
    (["--min-tokens", "3"], {"min_tokens": 3}),
    (["--stop-token-id", "3", "--stop-token-id", "4"], {"stop_token_ids": (3, 4)}),
]


@pytest.mark.parametrize(("flags", "expected"), GLOBAL_FLAGS)
def test_global_flags(run_mrs, flags, expected):
    ran = run_mrs(*flags, "plain", "-m", "x", "-P", "hello")
    assert (ran.code, ran.request) == (0, replace(PLAIN, **expected))


@pytest.mark.parametrize(("flags", "expected"), SELECTOR_FLAGS)
def test_flags_of_both_selectors(run_mrs, flags, expected):
    assert run_mrs("plain", "-m", "x", *flags, "-P", "a").request == replace(PLAIN, **expected)
    gguf = run_mrs("gguf", "-m", "x", "-f", "a.gguf", *flags, "-P", "a")
    assert gguf.request == replace(GGUF, **expected)


@pytest.mark.parametrize(("flags", "expected"), PLAIN_SOURCES)
def test_plain_flags(run_mrs, flags, expected):
    source = run_mrs("plain", "--model-id", "x", *flags, "-P", "a").request.source
    assert source == replace(PLAIN.source, **expected)


@pytest.mark.parametrize("flag", ["-a", "--arch"])
def test_architecture(run_mrs, flag):
    assert run_mrs("plain", "-m", "x", flag, "llama", "-P", "a").request.arch == "llama"


@pytest.mark.parametrize("source", ["literal:hf:x", "env:NAME", "path:/f", "cache", "none"])
def test_token_sources(run_mrs, source):
    ran = run_mrs("--token-source", source, "plain", "-m", "x", "-P", "a")
    assert ran.request.source.token_source == source


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["-m", "d", "-f", "a b"], {"model_id": "d", "filenames": ("a b",)}),
        (
            ["-m", "d", "-f", "a b.gguf c.gguf"],
            {"model_id": "d", "filenames": ("a b.gguf", "c.gguf")},
        ),
        (["-m", "d", "-f", "a", "-f", "b"], {"model_id": "d", "filenames": ("a", "b")}),
        (["-m", "demo"], {"model_id": "demo", "filenames": ()}),
        (["-m", "folder"], {"model_id": "folder", "filenames": ()}),
        (["-m", "a/b.gguf"], {"model_id": "a/b.gguf", "filenames": ()}),
        (
            ["--quantized-model-id", "d", "--quantized-filename", "a", "--tok-model-id", "t"],
            {"model_id": "d", "filenames": ("a",), "tokenizer_model_id": "t"},
        ),
        (["-m", "d", "-f", "a", "-t", "t"], {"filenames": ("a",), "tokenizer_model_id": "t"}),
    ],
)
def test_gguf_sources(run_mrs, flags, expected):
    source = run_mrs("gguf", *flags, "-P", "a").request.source
    assert source == replace(GGUF.source, **{"model_id": "d", **expected})


@pytest.mark.parametrize(("flags", "expected"), SAMPLING)
def test_sampling_stands_before_or_after_the_selector(run_mrs, flags, expected):
    for words in ([*flags, "plain", "-m", "x"], ["plain", "-m", "x", *flags]):
        ran = run_mrs(*words, "-P", "hello")
        assert ran.models[0].asked[0][1] == replace(Sampling(), **expected)


@pytest.mark.parametrize(("flags", "seed"), [(["-s", "7"], 7), (["--seed", "0"], 0), ([], None)])
def test_the_seed_stands_before_the_selector(run_mrs, flags, seed):
    ran = run_mrs(*flags, "plain", "-m", "x", "-P", "hello")
    assert ran.models[0].asked[0][1] == Sampling(seed=seed)


def test_every_sampling_field_has_a_flag():
    assert {name for _, expected in SAMPLING for name in expected} == {
        each.name for each in fields(Sampling)
    } - {
        *("seed", "reasoning_budget", "reasoning_budget_message", "reasoning_effort"),  # global
        *("logprobs", "prompt_logprobs", "variant", "ignore_eos"),  # for programs
        *("shows_control", "keeps_stop"),
    }


def test_the_word_nearest_to_the_model_wins(run_mrs):
    ran = run_mrs("--top-k", "5", "--min-p", "0.5", "plain", "-m", "x", "--top-k", "7", "-P", "a")
    assert ran.models[0].asked[0][1] == replace(Sampling(), top_k=7, min_p=0.5)


def test_flags_for_several_values_add_up(run_mrs):
    ran = run_mrs("--stop", "a", "plain", "-m", "x", "--stop", "b", "-P", "hello")
    assert ran.models[0].asked[0][1].stop == ("a", "b")


def test_the_line_of_the_original(run_mrs):
    line = "-i --isq q4k plain -m meta-llama/Llama-3.3-70B-Instruct --max-seq-len 4096"
    ran = run_mrs(*line.split(), "--max-batch-size", "2", stdin="hello\n")
    assert ran.request == RunRequest(
        ModelSource("meta-llama/Llama-3.3-70B-Instruct", "safetensors"),
        isq="q4k",
        max_seq_len=4096,
        max_batch_size=2,
    )
    assert ran.out == "Hello! I am a **fake** model.\n"
