"""What the types of keys and values add to a model's divergence, in nats.

    python tests/bench/kv_divergence.py FILE.gguf [--types q8_0 q4_0 …] [--texts 20]

Prints the mean, median and 99th percentile of the Kullback-Leibler divergence from the same model
with keys and values in float32, over every position of prompts of 20 to 1000 tokens, and the share
of positions with the same most likely token. Both compute with activations of 16 bits: codes of 8
bits would change with any change of a cache, and hide it. A type such as q8_0/q4_0 is that of keys,
then that of values.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from divergence import Mrs, texts
from torch import Tensor

from mrs.request import ActivationBits, ModelSource, PagedRequest, RunRequest
from mrs.run.model_loader import ModelLoader

LONGEST = 1000
TYPES = ("f16", "bf16", "q8_0", "q8_0/q4_0", "q4_0/q8_0", "q4_0")


def request(path: Path, cache_type: str, activations: ActivationBits = 16) -> RunRequest:
    """Of a GGUF file, or of a folder of safetensors."""
    keys, _, values = cache_type.partition("/")
    paged = PagedRequest(key_cache_type=keys, value_cache_type=values or keys)  # type: ignore[arg-type]
    if path.is_dir():
        source = ModelSource(str(path))
    else:
        source = ModelSource(str(path.parent), "gguf", (path.name,))
    return RunRequest(source, cpu=True, calibration=False, paged=paged, activations=activations)


class LongTexts(Mrs):
    def start(self) -> None:
        self._cache = self.decoder.new_cache(LONGEST, LONGEST)

    def log_probabilities(self, ids: list[int]) -> Tensor:
        """(T, V), in float64."""
        self.start()
        return self.feed(ids, range(len(ids))).double().log_softmax(-1)


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--types", nargs="*", default=TYPES)
    parser.add_argument("--texts", type=int, default=20)
    arguments = parser.parse_args()
    metadata = ModelLoader(request(arguments.file, "f32")).planner.checkpoint.config
    some = texts(metadata, arguments.texts, LONGEST)
    exact = LongTexts(request(arguments.file, "f32"))
    engines = {name: LongTexts(request(arguments.file, name)) for name in arguments.types}
    divergences: dict[str, list[Tensor]] = {name: [] for name in engines}
    same: dict[str, list[Tensor]] = {name: [] for name in engines}
    for number, ids in enumerate(some):
        wanted = exact.log_probabilities(ids)
        for name, engine in engines.items():
            found = engine.log_probabilities(ids)
            divergences[name].append((wanted.exp() * (wanted - found)).sum(-1))
            same[name].append(wanted.argmax(-1) == found.argmax(-1))
        print(f"  {number + 1} of {len(some)}", end="\r", file=sys.stderr)
    print("| type | positions | mean | median | 99 % | same token |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for name in engines:
        all_found, equal = torch.cat(divergences[name]), torch.cat(same[name]).double()
        middle, high = all_found.quantile(torch.tensor([0.5, 0.99], dtype=torch.float64)).tolist()
        row = f"{all_found.mean():.2g} | {middle:.2g} | {high:.2g} | {equal.mean():.2%}"
        print(f"| {name} | {len(all_found)} | {row} |")


if __name__ == "__main__":
    main()
