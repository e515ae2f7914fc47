"""Measure replies of quantized checkpoints beside those of GGUF's kinds with as many bits.

    python tests/bench/schemes.py FOLDER [--schemes gptq awq compressed-tensors fp8] [--rounds 7]

The model is the Llama of random_llama.py, which is written to FOLDER with a folder for each scheme.
Both models of a pair are loaded in one process and reply in turn; each line has the median rates,
and the median of the ratios of neighbouring rounds.
"""

from __future__ import annotations

import argparse
import gc
import json
import shutil
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "quantization")]

from packers import Scheme
from random_llama import write_folder
from scheme_cases import SCHEMES

from mrs.request import ModelSource, RunRequest
from mrs.run.bench import GREEDY
from mrs.run.loaded_model import LoadedModel
from mrs.run.model_loader import ModelLoader

#: The case of each scheme, and the `--isq` kind that it is compared with.
PAIRS = {
    "gptq": ("gptq-sym", "q4_0"),
    "gptq-asym": ("gptq-asym", "q4_1"),
    "awq": ("awq", "q4_0"),
    "compressed-tensors": ("compressed-4", "q4_0"),
    "fp8": ("fp8-tile", "q8_0"),
    "fp8-channel": ("compressed-fp8", "q8_0"),
}


def write_scheme(dense: Path, folder: Path, scheme: Scheme) -> None:
    """The dense model with random codes; matrices of one shape have the same ones."""
    rng = np.random.default_rng(0)
    packed: dict[torch.Size, dict[str, torch.Tensor]] = {}
    tensors: dict[str, torch.Tensor] = {}
    with safe_open(dense / "model.safetensors", "pt") as file:
        for name in file.keys():  # noqa: SIM118
            value = file.get_tensor(name)
            if not name.endswith("_proj.weight"):
                tensors[name] = value
                continue
            if value.shape not in packed:
                packed[value.shape] = scheme.pack(rng, *value.shape)[0]
            for suffix, part in packed[value.shape].items():
                tensors[name.removesuffix(".weight") + suffix] = part.clone()
    folder.mkdir()
    for each in dense.glob("*.json"):
        shutil.copy(each, folder)
    config = json.loads((dense / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": scheme.config}))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def load(folder: Path, isq: str | None = None) -> tuple[LoadedModel, float]:
    """The model, and the seconds that loading it took."""
    request = RunRequest(ModelSource(str(folder), "safetensors"), isq=isq, speculate="off")
    loader = ModelLoader(request)
    start = time.perf_counter()
    model = loader.load(None)
    return model, time.perf_counter() - start


def reply_rate(model: LoadedModel, new_tokens: int, seed: int) -> float:
    """Tokens a second after the first one of a greedy reply."""
    ids = torch.randint(3, 259, (16,), generator=torch.Generator().manual_seed(seed)).tolist()
    tokens = model.engine.generate(ids, replace(GREEDY, max_tokens=new_tokens))
    next(tokens)
    start = time.perf_counter()
    left = len(list(tokens))
    return left / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--schemes", nargs="*", default=list(PAIRS), choices=list(PAIRS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--new-tokens", type=int, default=64)
    arguments = parser.parse_args()
    dense = arguments.folder / "dense"
    if not (dense / "tokenizer_config.json").exists():
        write_folder(dense)
    cases = {case.id: case for case in SCHEMES}
    for name in arguments.schemes:
        case, isq = PAIRS[name]
        folder = arguments.folder / case
        if not folder.exists():
            write_scheme(dense, folder, cases[case])
        (model, load_s), (other, _) = load(folder), load(dense, isq)
        rates = [
            (reply_rate(model, arguments.new_tokens, n), reply_rate(other, arguments.new_tokens, n))
            for n in range(arguments.rounds + 1)
        ][1:]
        mine, theirs = (statistics.median(column) for column in zip(*rates, strict=True))
        ratio = statistics.median(a / b for a, b in rates)
        print(
            f"{name:19} {mine:6.1f} tokens/s  {isq} {theirs:6.1f}  ratio {ratio:.3f}"
            f"  loaded in {load_s:.1f} s",
            flush=True,
        )
        model.close()
        other.close()
        del model, other
        gc.collect()


if __name__ == "__main__":
    main()
