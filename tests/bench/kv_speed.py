"""How much faster replies are with quantized keys and values, after many tokens, on the CPU.

    python tests/bench/kv_speed.py MODEL [--context 16384] [--types bf16 q8_0 …] [--rounds 7]

MODEL is a GGUF file or a folder of safetensors. All settings share one process and take turns: each
round decodes some tokens with one after another. Keys and values are random numbers, so that no
prompt has to be computed, and a context may be longer than the model was trained for. Prints the
median time of a token, what it reads (weights and cache) and how fast, how many times as fast as
the first type replies are, and the most that the bytes allow.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from statistics import median

import torch
from kv_divergence import request

from mrs.cache.paged_kv import PagedKVCache
from mrs.cache.sequence_cache import SequenceCache
from mrs.kernels.attention_backend import attention_backend
from mrs.kernels.paged import AttentionBatch
from mrs.model.batch import SequenceInput, forward_batch
from mrs.plan.cost import decoded_weight_bytes
from mrs.plan.memory.kv_bytes import decoded_cache_bytes
from mrs.request import ActivationBits
from mrs.run.model_loader import ModelLoader
from support.planned_decoder import planned_decoder

TYPES = ("bf16", "q8_0", "q8_0/q4_0", "q4_0")
CHUNK_TOKENS, TOKENS_PER_ROUND = 512, 8


class Setting:
    """The model with one type of cache, in which a sequence of `context` tokens is."""

    def __init__(
        self, path: Path, cache_type: str, context: int, activations: ActivationBits
    ) -> None:
        loader = ModelLoader(request(path, cache_type, activations))
        planner, plan = loader.planner, loader.plan
        spec, cpu = planner.description.spec, torch.device("cpu")
        _, self._decoder = planned_decoder(planner.checkpoint, planner.description, plan, [cpu])
        self.weight_bytes = decoded_weight_bytes(planner.description.parameters, spec, plan.storage)
        self.cache_bytes = decoded_cache_bytes(spec.layers, plan.cache_format, context)
        self._cache = self._decoder.new_cache(context + 4096, CHUNK_TOKENS)
        fill(self._cache, context)

    @torch.inference_mode()
    def round_s(self) -> float:
        """Seconds of a token."""
        started = time.perf_counter()
        for _ in range(TOKENS_PER_ROUND):
            fed = SequenceInput(self._cache, [7], logits_rows=range(1))
            self._decoder.forward(forward_batch([fed]), [self._cache])
        return (time.perf_counter() - started) / TOKENS_PER_ROUND


def fill(cache: SequenceCache, context: int) -> None:
    """Write random keys and values of `context` tokens to all layers."""
    numbers = torch.Generator().manual_seed(0)
    for start in range(0, context, CHUNK_TOKENS):
        count = min(CHUNK_TOKENS, context - start)
        cache.reserve(count)
        for layer in cache.layers:
            if not isinstance(layer, PagedKVCache):
                continue
            table, kv = cache.tables[layer.group], layer.kv
            batch = AttentionBatch(
                torch.tensor([0, count], dtype=torch.int32),
                torch.tensor([start + count], dtype=torch.int32),
                torch.tensor([table.row()], dtype=torch.int32),
                torch.tensor(table.slots(start, start + count)),
            )
            dims = [each.dim for each in kv.codes] or [kv.keys.shape[-1], kv.values.shape[-1]]
            k, v = (torch.randn(count, kv.keys.shape[1], dim, generator=numbers) for dim in dims)
            attention_backend(kv).write(kv, batch, k, v)
        cache.advance(count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--context", type=int, default=16384)
    parser.add_argument("--types", nargs="*", default=TYPES)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--activations", type=int, default=8, choices=(8, 16))
    arguments = parser.parse_args()
    settings = {
        name: Setting(arguments.model, name, arguments.context, arguments.activations)
        for name in arguments.types
    }
    times: dict[str, list[float]] = {name: [] for name in settings}
    for number in range(arguments.rounds + 1):
        for name, setting in settings.items():
            seconds = setting.round_s()
            if number:  # the first round warms up
                times[name].append(seconds)
    first = next(iter(settings))
    print(f"{arguments.model.name}, {arguments.context} tokens, {torch.get_num_threads()} threads")
    print("| type | ms/token | weights + cache, MB | GB/s | times as fast | the bytes allow |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for name, setting in settings.items():
        seconds = median(times[name])
        read, base = (s.weight_bytes + s.cache_bytes for s in (setting, settings[first]))
        faster = median(a / b for a, b in zip(times[first], times[name], strict=True))
        parts = f"{setting.weight_bytes / 1e6:.0f} + {setting.cache_bytes / 1e6:.0f}"
        rate = f"{read / seconds / 1e9:.1f} | {faster:.2f} | {base / read:.2f}"
        print(f"| {name} | {1000 * seconds:.1f} | {parts} | {rate} |")


if __name__ == "__main__":
    main()
