"""Rates of plans at several sequences and contexts, beside what runs take.

    python tests/bench/planned_rates.py FOLDER [--kinds dense mixture mamba2 delta windows]
        [--sequences 1 4 16] [--tokens 512 8192] [--isq q4k]

Without flags it takes about ten minutes on an idle machine.

Random models of each kind are written to FOLDER once, about 50 million weights each. Every model
runs in a process of its own, on one core, with a cache folder of its own. Times are processor time
of steps, so that other programs disturb them little. One short reply and one prompt calibrate: what
they teach is kept as any run keeps it, and all rows are compared with a plan made after that. The
most replies at once begin together, and some end once all were counted: each prompt is read once.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

#: Tokens of each reply that count, after some that do not; those of the prompt that calibrates.
COUNTED, WARM, PROMPT = 24, 6, 512
#: Replies that began first go on until the others have begun and all were counted.
MOST = 1024
#: A row is good within this share of the plan's figure.
ERROR = 0.2
_SIZES: dict[str, Any] = {
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_hidden_layers": 8,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "vocab_size": 4096,
    "max_position_embeddings": 16384,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
#: Every fourth layer has attention.
_FOURTHS = [layer % 4 == 3 for layer in range(_SIZES["num_hidden_layers"])]
KINDS: dict[str, dict[str, Any]] = {
    "dense": {"model_type": "llama"},
    "mixture": {
        "model_type": "qwen3_moe",
        "num_experts": 32,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 256,
        "norm_topk_prob": True,
    },
    "mamba2": {
        "model_type": "granitemoehybrid",
        "num_local_experts": 0,
        "shared_intermediate_size": 2048,
        "mamba_n_heads": 24,
        "mamba_d_head": 64,
        "mamba_d_state": 128,
        "layer_types": ["attention" if it is True else "mamba" for it in _FOURTHS],
    },
    "delta": {
        "model_type": "qwen3_5_text",
        "linear_num_key_heads": 6,
        "linear_num_value_heads": 6,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "layer_types": ["full_attention" if it else "linear_attention" for it in _FOURTHS],
        "mlp_layer_types": ["dense"] * len(_FOURTHS),
    },
    "windows": {
        "model_type": "gemma3_text",
        "sliding_window": 512,
        "query_pre_attn_scalar": 64,
        "layer_types": ["full_attention" if it else "sliding_attention" for it in _FOURTHS],
    },
}


def folder_of(parent: Path, kind: str) -> Path:
    """The model's folder, written unless it exists."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    from support.model_files import write_model

    folder = parent / kind
    if not (folder / "tokenizer.json").exists():
        write_model(folder, {**_SIZES, **KINDS[kind]}, "BF16", std=None)
        words = {f"w{n}": n for n in range(_SIZES["vocab_size"])}  # so that each token is text
        tokenizer = Tokenizer(models.WordLevel(words, "w0"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        tokenizer.decoder = decoders.WordPiece()
        tokenizer.save(str(folder / "tokenizer.json"))
    return folder


class Step(NamedTuple):
    """Processor time of the engine's thread for a step, and what the step did."""

    seconds: float
    computed: int
    tokens: int
    replies: int


def noted_steps() -> list[Step]:
    """The steps that engines make from now on."""
    from mrs.engine.engine import Engine

    step, steps = Engine.step, list[Step]()

    def noted(engine: Any, *given: Any) -> Any:
        began, before = time.thread_time(), engine._num_computed_tokens
        outputs = step(engine, *given)
        seconds, computed = time.thread_time() - began, engine._num_computed_tokens - before
        replies = [id(each.sequence) for each in outputs if each.token is not None]
        steps.append(Step(seconds, computed, len(replies), len(set(replies))))
        return outputs

    Engine.step = noted  # type: ignore[method-assign]
    return steps


class Measured:
    """A loaded model, and the processor time of its steps."""

    def __init__(self, model: Any, steps: list[Step]) -> None:
        self._model, self._steps = model, steps

    def prompt_seconds(self, tokens: int) -> float:
        """Of all steps of a prompt."""
        self._steps.clear()
        self._reply(tokens, seed=0, is_enough=lambda: True)
        return sum(each.seconds for each in self._steps)

    def step_seconds(self, counts: Sequence[int], tokens: int, windows: int) -> dict[int, float]:
        """Of a step of so many replies, each after so many tokens: the fastest of `windows` means.

        For each of `counts`, the largest of which begin together.
        """
        self._steps.clear()

        def counted(replies: int) -> list[Step]:
            """The steps of so many of them in which each only computed tokens of its reply."""
            steps = [each for each in self._steps[:-1] if each.computed == each.tokens]
            return [each for each in steps if each.replies == replies][WARM if replies > 1 else 1 :]

        def is_enough(replies: int) -> bool:
            done = sum(each.tokens for each in counted(replies))
            return done >= COUNTED * replies * windows

        def was_counted(seed: int) -> bool:
            return all(is_enough(replies) for replies in counts if replies > seed)

        threads = [
            threading.Thread(target=self._reply, args=(tokens, seed, partial(was_counted, seed)))
            for seed in range(max(counts))
        ]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        return {each: _fastest(counted(each), windows) for each in counts}

    def _reply(self, tokens: int, seed: int, is_enough: Callable[[], bool]) -> None:
        """Every seed has its own prompt, so that nothing is shared."""
        from mrs.request import Sampling

        sampling = Sampling(max_tokens=MOST, ignore_eos=True, temperature=1.0, seed=seed)
        for _ in self._model.stream_completion(f"w{1 + seed} " * tokens, sampling):
            if is_enough():
                break


def _fastest(steps: Sequence[Step], windows: int) -> float:
    """Seconds of a step in which each reply makes a token: of the window with the least."""
    size = len(steps) // windows
    some = (steps[size * n : size * (n + 1)] for n in range(windows))
    return min(
        sum(each.seconds for each in window) / sum(each.tokens / each.replies for each in window)
        for window in some
    )


def run(folder: Path, asked: argparse.Namespace) -> None:
    from mrs.devices.bandwidth import learn_host_bandwidth
    from mrs.plan.speed.learnt import Pace, learn
    from mrs.request import ModelSource, RunRequest
    from mrs.run.model_loader import ModelLoader

    learn_host_bandwidth()
    request = RunRequest(
        ModelSource(str(folder), "safetensors"),
        cpu=True,
        isq=asked.isq,
        max_seq_len=max(asked.tokens) + MOST,
        max_batch_size=max(asked.sequences),
        max_seqs=max(asked.sequences),
        prefix_cache_n=0,
        speculate="off",
        calibration=False,
    )
    steps = noted_steps()
    model = ModelLoader(request).load()
    measured, pace = Measured(model, steps), Pace()
    for _ in range(3):
        pace.add_prompt(PROMPT, measured.prompt_seconds(PROMPT))
        pace.add_step(measured.step_seconds([1], 2 * WARM, 1)[1])
    before = model.plan.speed
    learn(before, pace)
    speed = ModelLoader(request).plan.speed
    print(
        f"{folder.name}: calibrated {1 / pace.step_s:.1f} tokens/s (planned "
        f"{before.decode.expected:.1f}), prompt {PROMPT / pace.prompt_s:.0f} (planned "
        f"{before.prompt_of(PROMPT).expected:.0f})",
        flush=True,
    )
    for tokens in asked.tokens:
        seconds = measured.step_seconds(asked.sequences, tokens, asked.windows)
        for sequences, step_s in seconds.items():
            planned = speed.decode_of(sequences, tokens).expected
            ratio = sequences / step_s / planned
            is_good = 1 / (1 + ERROR) <= ratio <= 1 + ERROR
            print(
                f"{folder.name:8} {sequences:3} x {tokens:6} tokens: {sequences / step_s:8.1f} "
                f"tokens/s, planned {planned:8.1f}, {ratio:.2f} times{'' if is_good else '  !'}",
                flush=True,
            )
    model.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kinds", nargs="+", default=list(KINDS))
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--tokens", type=int, nargs="+", default=[512, 8192])
    parser.add_argument("--windows", type=int, default=2, help="the fastest of so many counts")
    parser.add_argument("--isq")
    parser.add_argument("--child", action="store_true")
    asked = parser.parse_args()
    if asked.child:
        run(asked.folder, asked)
        return
    core = {min(os.sched_getaffinity(0))}
    for kind in asked.kinds:
        folder = folder_of(asked.folder, kind)
        given = sys.argv[1:]
        given[given.index(str(asked.folder))] = str(folder)
        with tempfile.TemporaryDirectory() as cache:
            subprocess.run(
                [sys.executable, __file__, *given, "--child"],
                env={**os.environ, "XDG_CACHE_HOME": cache},
                preexec_fn=lambda: os.sched_setaffinity(0, core),
                check=False,
            )


main()
