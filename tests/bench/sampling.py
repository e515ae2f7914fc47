"""How long choosing tokens for 16 sequences takes, by setting, vocabulary and shape of the logits.

    python tests/bench/sampling.py

Milliseconds, the least of ten. "flat" logits are those of random weights (a standard deviation of
1), in "peaked" ones 40 tokens stand out, as in a trained model's.
"""

from __future__ import annotations

import time
from random import Random

import numpy as np

from mrs.engine.sampling.sampler import Sampler
from mrs.kernels.cpu.heap import keep_freed_memory
from mrs.request import Sampling

SEQUENCES = 16
SETTINGS = {
    "temperature 1": {"temperature": 1.0},
    "top-k 40": {"top_k": 40},
    "top-k 64, top-p": {"top_k": 64, "top_p": 0.95},
    "top-p 0.9": {"top_p": 0.9},
    "min-p": {"min_p": 0.05},
    "penalties": {"top_k": 40, "repetition_penalty": 1.1, "frequency_penalty": 0.1},
    "DRY": {"top_k": 40, "dry_multiplier": 0.8},
    "logprobs": {"top_k": 40, "logprobs": 5},
}


def logits_of(shape: str, vocab_size: int) -> np.ndarray:
    numbers = np.random.default_rng(0)
    logits = numbers.standard_normal((SEQUENCES, vocab_size), np.float32)
    if shape == "peaked":
        logits *= 2.5
        for row in logits:
            row[numbers.integers(0, vocab_size, 40)] = 14 + 3 * numbers.random(40)
    return logits


def measure_ms(sampling: Sampling, logits: np.ndarray) -> float:
    prompt = np.minimum(np.random.default_rng(3).zipf(1.3, 2000), 31_000).tolist()
    samplers = [Sampler(sampling, prompt, logits.shape[1], Random(n)) for n in range(SEQUENCES)]
    times_s = []
    for _ in range(10):
        rows = logits.copy()
        start_s = time.perf_counter()
        for choose, row in zip(samplers, rows, strict=True):
            choose(row)
        times_s.append(time.perf_counter() - start_s)
    return 1e3 * min(times_s)


def main() -> None:
    keep_freed_memory()  # as a loaded model does
    for vocab_size in (32_000, 128_256, 151_936):
        for shape in ("flat", "peaked"):
            logits = logits_of(shape, vocab_size)
            for name, values in SETTINGS.items():
                sampling = Sampling(**{"temperature": 0.8, **values})
                print(f"{vocab_size} {shape:6} {name:16} {measure_ms(sampling, logits):6.2f}")


if __name__ == "__main__":
    main()
