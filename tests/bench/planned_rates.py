"""Rates of a plan at several sequences and contexts, beside what a run takes.

    taskset -c 0 python tests/bench/planned_rates.py MODEL [--sequences 1 4 16] [--tokens 512 8192]

It runs on one core and counts the processor time of its steps, so that other programs disturb it
little. The first row calibrates: it says how many times slower or faster than planned this machine
is, and all other rows are compared with plans of that speed.
"""

from __future__ import annotations

import argparse
import os
import threading
import time
from dataclasses import replace

from mrs.devices.bandwidth import learn_host_bandwidth
from mrs.events import Finished, TextDelta
from mrs.request import ModelSource, RunRequest, Sampling
from mrs.run.loaded_model import LoadedModel
from mrs.run.model_loader import ModelLoader

#: Tokens of each reply that count, after some that do not.
COUNTED, WARM = 24, 6
WORD = " the"


def measured(model: LoadedModel, sequences: int, tokens: int) -> float:
    """Tokens a second of processor time of so many replies, each after so many tokens."""
    prompt = WORD * (tokens - WARM)
    sampling = Sampling(max_tokens=4 * (COUNTED + WARM), ignore_eos=True, temperature=1.0)
    ready, done = threading.Barrier(sequences + 1), threading.Barrier(sequences + 1)

    def reply(seed: int) -> None:
        count = 0
        for event in model.stream_completion(prompt, replace(sampling, seed=seed)):
            if isinstance(event, TextDelta | Finished):
                count += 1
            if count == WARM:
                ready.wait()
            if count == WARM + COUNTED:
                done.wait()
                return

    threads = [threading.Thread(target=reply, args=(seed,)) for seed in range(sequences)]
    for thread in threads:
        thread.start()
    ready.wait()
    began = time.process_time()
    done.wait()
    seconds = time.process_time() - began
    for thread in threads:
        thread.join()
    return sequences * COUNTED / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--tokens", type=int, nargs="+", default=[512, 8192])
    asked = parser.parse_args()
    assert len(os.sched_getaffinity(0)) == 1, "run it with taskset -c 0"
    learn_host_bandwidth()
    container = "gguf" if asked.model.endswith(".gguf") else "safetensors"
    most = max(asked.tokens) + 4 * (COUNTED + WARM)
    request = RunRequest(
        ModelSource(asked.model, container),
        max_seq_len=most,
        max_batch_size=max(asked.sequences),
        max_seqs=max(asked.sequences),
        speculate="off",
        calibration=False,
    )
    model = ModelLoader(request).load()
    factor = None
    for tokens in asked.tokens:
        for sequences in asked.sequences:
            rate = measured(model, sequences, tokens)
            planned = model.plan.speed.decode_of(sequences, tokens).expected
            factor = factor or rate / planned
            print(
                f"{sequences:3} x {tokens:6} tokens: {rate:8.1f} tokens/s, planned"
                f" {factor * planned:8.1f}, {rate / (factor * planned):.2f} times",
                flush=True,
            )
    print(f"this machine is {factor:.2f} times as fast as planned")
    model.close()


main()
