"""Tokens a second of transformers and vLLM on this machine's GPU; what is not installed is named.

python tests/bench/gpu_peers.py FOLDER
"""

from __future__ import annotations

import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import torch

PROMPT_TOKENS, NEW_TOKENS = 512, 64


def transformers_rates(folder: Path) -> tuple[float, float]:
    """Tokens a second of a prompt and of a reply, bf16, the best of three."""
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    model = model.to("cuda").eval()
    rates = []
    for seed in range(3):
        ids = torch.randint(3, 30000, (1, PROMPT_TOKENS), device="cuda")
        times = [_seconds(model, ids, count, seed) for count in (1, NEW_TOKENS + 1)]
        rates.append((PROMPT_TOKENS / times[0], NEW_TOKENS / (times[1] - times[0])))
    return max(prompt for prompt, _ in rates), max(reply for _, reply in rates)


def _seconds(model: object, ids: torch.Tensor, count: int, seed: int) -> float:
    torch.manual_seed(seed)
    torch.cuda.synchronize()
    start = time.perf_counter()
    model.generate(ids, max_new_tokens=count, min_new_tokens=count, do_sample=False)  # type: ignore[attr-defined]
    torch.cuda.synchronize()
    return time.perf_counter() - start


def main() -> int:
    (folder,) = map(Path, sys.argv[1:])
    if not torch.cuda.is_available():
        print("no CUDA device")
        return 1
    if find_spec("transformers"):
        prompt, reply = transformers_rates(folder)
        print(f"transformers bf16: prompt {prompt:.0f}, reply {reply:.1f} tokens a second")
    else:
        print("transformers is not installed")
    if find_spec("vllm"):
        latency = (sys.executable, "-m", "vllm.entrypoints.cli.main", "bench", "latency")
        sizes = ("--input-len", str(PROMPT_TOKENS), "--output-len", str(NEW_TOKENS))
        subprocess.run((*latency, "--model", str(folder), "--batch-size", "1", *sizes), check=False)
    else:
        print("vLLM is not installed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
